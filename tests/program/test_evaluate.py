"""A data set through a program, float and fake-quantized beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.models.transforms import Normalize
from ethorch.support.errors import EthorchError, SpecError, UserCodeError


@pytest.fixture(scope="module")
def labelled(model: nn.Module, images: list[Tensor]) -> list[tuple[Tensor, int]]:
    """Each image with what the float model says of it; the last one's label is wrong."""
    with torch.no_grad():
        pairs = [(image[0], int(model(image).argmax())) for image in images]
    return [*pairs[:-1], (pairs[-1][0], (pairs[-1][1] + 1) % 10)]


def test_three_columns(program: ethorch.Program, labelled: list[tuple[Tensor, int]]) -> None:
    found = ethorch.evaluate(program, labelled, batch=3, keep=True)
    assert found.samples == 8 and list(found.results) == ["npu", "float", "quantized"]
    assert found.results["float"]["top1"] == 7 / 8 and "sqnr_db" not in found.results["float"]
    kept = {column: torch.cat([sample.outputs[column][0] for sample in found.sample_results]) for column in found.results}
    for column in ("npu", "quantized"):
        assert found.results[column]["sqnr_db"] == pytest.approx(ethorch.sqnr_db(kept["float"], kept[column]))
        right = [int(row.argmax()) == label for row, (_, label) in zip(kept[column], labelled, strict=True)]
        assert found.results[column]["top1"] == sum(right) / 8
        assert sum(map(sum, found.confusion[column])) == 8
    assert torch.equal(kept["npu"], program(torch.stack([image for image, _ in labelled])))
    assert "top1" in str(found) and "87.50%" in str(found)
    assert "sample_results" not in found.to_json()


def test_a_file_has_one_column(program: ethorch.Program, labelled: list[tuple[Tensor, int]], tmp_path: Path) -> None:
    found = ethorch.evaluate(program.save(tmp_path / "x.pte"), ethorch.samples(labelled, limit=5))
    assert list(found.results) == ["npu"] and found.samples == 5


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_give_the_same(program: ethorch.Program, labelled: list[tuple[Tensor, int]], workers: int) -> None:
    here = ethorch.evaluate(program, labelled, keep=True)
    with joblib.parallel_config(backend="threading"):
        there = ethorch.evaluate(program, labelled, batch=3, jobs=workers, keep=True)
    assert there.results == here.results
    assert [sample.name for sample in there.sample_results] == [sample.name for sample in here.sample_results]


def test_metrics_of_the_user(program: ethorch.Program, labelled: list[tuple[Tensor, int]]) -> None:
    def mean_error(outputs: Any, labels: Any) -> dict[str, float]:
        return {"error": float(np.mean([answer != label for answer, label in zip(outputs, labels, strict=True)])), "n": len(labels)}

    found = ethorch.evaluate(program, labelled, metric=mean_error, postprocess=lambda flat: int(flat[0].argmax()))
    assert found.results["float"]["error"] == 1 / 8 and found.results["npu"]["n"] == 8 and not found.confusion

    class Counts:
        def __init__(self) -> None:
            self.seen = 0

        def update(self, outputs: Tensor, target: Tensor) -> None:
            self.seen += len(target) if outputs.shape == (1, 10) else 0

        def compute(self) -> Tensor:
            return torch.tensor(float(self.seen))

    assert ethorch.evaluate(program, labelled, metric=Counts()).results["npu"]["Counts"] == 8
    with pytest.raises(SpecError, match="metric: expected None, 'map'"):
        ethorch.evaluate(program, labelled, metric=3)
    with pytest.raises(SpecError, match="against: expected 'float' or 'quantized', got 'fake'"):
        ethorch.evaluate(program, labelled, against=["fake"])


class Detector(nn.Module):
    """Which of 4x4 cells are bright in the first channel, and which in the second: float[1, 2, 4, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.Conv2d(2, 2, 4, stride=4, bias=False)
        with torch.no_grad():
            self.cells.weight.zero_()
            for channel in range(2):
                self.cells.weight[channel, channel] = 1 / 16

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.cells(x)
        return found

    @staticmethod
    def boxes(flat: list[Tensor]) -> dict[str, Tensor]:
        """A box around each cell of more than a half."""
        label, y, x = (flat[0][0] > 0.5).nonzero().T
        corner = torch.stack([x, y, x, y], 1) * 4.0
        return {"boxes": corner + torch.tensor([0.0, 0.0, 4.0, 4.0]), "scores": flat[0][0, label, y, x], "labels": label}

    @staticmethod
    def picture(*objects: tuple[int, int, int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Objects (label, y, x) of the grid as a picture and as boxes."""
        picture, boxes = torch.zeros(2, 16, 16), []
        for number, (label, y, x) in enumerate(objects):
            picture[label, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] = 1 - 0.1 * number
            boxes.append([4.0 * x, 4.0 * y, 4.0 * x + 4, 4.0 * y + 4])
        return picture, {"boxes": torch.tensor(boxes), "labels": torch.tensor([label for label, _, _ in objects])}


@pytest.fixture(scope="module")
def detector() -> ethorch.Program:
    pictures = [Detector.picture((0, 1, 2), (1, 3, 0))[0][None], Detector.picture((1, 0, 0))[0][None]]
    return ethorch.compile(Detector(), (pictures[0],), calibration=[(picture,) for picture in pictures])


def test_detections_go_to_the_metric_as_lists_of_pictures(detector: ethorch.Program) -> None:
    class Found:
        """Boxes that are found exactly, of all that are wanted."""

        def __init__(self) -> None:
            self.right = self.wanted = 0

        def update(self, found: list[dict[str, Tensor]], wanted: list[dict[str, Tensor]]) -> None:
            for one, other in zip(found, wanted, strict=True):
                self.right += sum(box in one["boxes"].tolist() for box in other["boxes"].tolist())
                self.wanted += len(other["boxes"])

        def compute(self) -> dict[str, float]:
            return {"recall": self.right / self.wanted}

    missed = {"boxes": torch.tensor([[8.0, 8.0, 12.0, 12.0]]), "labels": torch.tensor([0])}
    data = [Detector.picture((0, 1, 2), (1, 3, 0)), Detector.picture((1, 0, 0)), (torch.zeros(2, 16, 16), missed)]
    found = ethorch.evaluate(detector, data, metric=Found(), postprocess=Detector.boxes)
    assert [found.results[column]["recall"] for column in ("npu", "float", "quantized")] == [0.75] * 3


@pytest.mark.long  # the import of torchmetrics takes 4 seconds
def test_mean_average_precision_of_a_detector(detector: ethorch.Program) -> None:
    data = [Detector.picture((0, 1, 2), (1, 3, 0)), Detector.picture((1, 0, 0)), Detector.picture((0, 3, 3), (0, 0, 1))]
    found = ethorch.evaluate(detector, data, metric="map", postprocess=Detector.boxes)
    assert [found.results[column]["map"] for column in ("npu", "float", "quantized")] == [1.0] * 3
    assert found.samples == 3 and not found.confusion
    missed = {"boxes": torch.tensor([[8.0, 8.0, 12.0, 12.0]]), "labels": torch.tensor([0])}
    found = ethorch.evaluate(detector, [*data, (torch.zeros(2, 16, 16), missed)], metric="map", postprocess=Detector.boxes)
    # COCO's precision at 101 recalls: of the class 0, of whose 4 objects 3 are found, 1 up to a recall of 0.75; of the other 1.
    assert found.results["npu"]["map_50"] == pytest.approx((76 / 101 + 1) / 2)


def test_what_detection_needs_is_named(monkeypatch: pytest.MonkeyPatch, detector: ethorch.Program) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EthorchError, match=r"ethorch\[metrics\]"):
        ethorch.evaluate(detector, [Detector.picture((0, 1, 2))], metric="map")


@pytest.mark.long
def test_a_dask_cluster_takes_over(program: ethorch.Program, labelled: list[tuple[Tensor, int]]) -> None:
    import distributed

    here = ethorch.evaluate(program, labelled, keep=True)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        distributed.get_task_stream(client) as stream,
        joblib.parallel_config(backend="dask"),
    ):
        there = ethorch.evaluate(program, labelled, batch=2, jobs=2, keep=True)
    assert there.results == here.results and len(stream.data) >= 4, "the cluster's workers ran no parts"
    assert [sample.name for sample in there.sample_results] == [sample.name for sample in here.sample_results]


def test_an_interruption_gives_the_figures_so_far(program: ethorch.Program, labelled: list[tuple[Tensor, int]]) -> None:
    def broken() -> Any:
        yield from labelled[:4]
        raise KeyboardInterrupt

    found = ethorch.evaluate(program, broken(), batch=2)
    assert found.interrupted and found.samples == 4 and "interrupted" in str(found)


def test_a_metric_that_fails_is_an_error_of_the_user(program: ethorch.Program, labelled: list[tuple[Tensor, int]]) -> None:
    class Picky:
        def update(self, outputs: Tensor, target: Tensor) -> None:
            raise ValueError("no boxes")

        def compute(self) -> float:
            return 0.0

    with pytest.raises(UserCodeError, match=r"the metric Picky does not accept the outputs and labels .*no boxes"):
        ethorch.evaluate(program, labelled, metric=Picky())
    with pytest.raises(UserCodeError, match="the metric <lambda> failed"):
        ethorch.evaluate(program, labelled, metric=lambda outputs: 0.0)


def test_infinite_figures_are_null_in_json(tmp_path: Path) -> None:
    class Copies(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x).transpose(1, 2)

    program = ethorch.compile(Copies().eval(), torch.zeros(1, 3, 5))
    found = ethorch.evaluate(program, [torch.zeros(1, 3, 5)])
    assert found.results["npu"]["sqnr_db"] == float("inf") and found.to_json()["results"]["npu"]["sqnr_db"] is None
    json.dumps(found.to_json(), allow_nan=False)
    loaded = ethorch.evaluate(program.save(tmp_path / "x.pte"), [torch.zeros(1, 3, 5)])
    assert "There are no figures, because the samples have no labels" in " ".join(str(loaded).split())


def test_nothing_to_evaluate(program: ethorch.Program) -> None:
    with pytest.raises(EthorchError, match="expected at least one sample"):
        ethorch.evaluate(program, [])


def test_normalize() -> None:
    x = torch.rand(3, 4, 5)
    normalize = Normalize([0.5, 0.25, 0.0], [0.5, 0.5, 2.0])
    picture, label = normalize((x, 7))
    assert label == 7 and torch.equal(picture[2], x[2] / 2) and torch.allclose(picture[0], 2 * x[0] - 1)
    for mean, std in (([0.5], [0.0]), ([0.5, 0.5], [1.0]), ([], [])):
        with pytest.raises(SpecError, match="std"):
            Normalize(mean, std)
    with pytest.raises(SpecError, match=r"one for each of the image's 4 channels, got 3"):
        normalize(torch.rand(4, 5, 6))

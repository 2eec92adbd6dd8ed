"""A data set through a program, float and fake-quantized beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.data.transforms import Normalize
from ethorch.errors import EthorchError, SpecError


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
    kept = {column: torch.cat([sample.outputs[column][0] for sample in found.kept]) for column in found.results}
    for column in ("npu", "quantized"):
        assert found.results[column]["sqnr_db"] == pytest.approx(ethorch.sqnr_db(kept["float"], kept[column]))
        right = [int(row.argmax()) == label for row, (_, label) in zip(kept[column], labelled, strict=True)]
        assert found.results[column]["top1"] == sum(right) / 8
        assert sum(map(sum, found.confusion[column])) == 8
    assert torch.equal(kept["npu"], program(torch.stack([image for image, _ in labelled])))
    assert "top1" in str(found) and "87.50%" in str(found)
    assert "kept" not in found.to_json()


def test_a_file_has_one_column(program: ethorch.Program, labelled: list[tuple[Tensor, int]], tmp_path: Path) -> None:
    found = ethorch.evaluate(program.save(tmp_path / "x.pte"), labelled, limit=5)
    assert list(found.results) == ["npu"] and found.samples == 5


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_give_the_same(program: ethorch.Program, labelled: list[tuple[Tensor, int]], workers: int) -> None:
    here = ethorch.evaluate(program, labelled, keep=True)
    with joblib.parallel_config(backend="threading"):
        there = ethorch.evaluate(program, labelled, batch=3, workers=workers, keep=True)
    assert there.results == here.results
    assert [sample.name for sample in there.kept] == [sample.name for sample in here.kept]


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
    with pytest.raises(SpecError, match="metric is int"):
        ethorch.evaluate(program, labelled, metric=3)
    with pytest.raises(SpecError, match="against has 'fake'"):
        ethorch.evaluate(program, labelled, against=["fake"])


def test_an_interruption_gives_the_figures_so_far(program: ethorch.Program, labelled: list[tuple[Tensor, int]]) -> None:
    def broken() -> Any:
        yield from labelled[:4]
        raise KeyboardInterrupt

    found = ethorch.evaluate(program, broken(), batch=2)
    assert found.interrupted and found.samples == 4 and "interrupted" in str(found)


def test_nothing_to_evaluate(program: ethorch.Program) -> None:
    with pytest.raises(EthorchError, match="holds no sample"):
        ethorch.evaluate(program, [])


def test_normalize() -> None:
    x = torch.rand(3, 4, 5)
    normalize = Normalize([0.5, 0.25, 0.0], [0.5, 0.5, 2.0])
    picture, label = normalize((x, 7))
    assert label == 7 and torch.equal(picture[2], x[2] / 2) and torch.allclose(picture[0], 2 * x[0] - 1)
    for mean, std in (([0.5], [0.0]), ([0.5, 0.5], [1.0]), ([], [])):
        with pytest.raises(SpecError, match="std"):
            Normalize(mean, std)

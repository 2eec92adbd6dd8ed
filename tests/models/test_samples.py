"""Samples of whatever users have."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ethorch.models.load import UserModel
from ethorch.models.samples import Keywords, read_samples, samples
from ethorch.support.errors import EthorchError

EXAMPLE = (torch.zeros(1, 3, 4, 6),)


def taken(source: Any, example: tuple[Any, ...] = EXAMPLE, **options: Any) -> list[Any]:
    return list(read_samples(source, example, **options))


def test_items_of_every_form() -> None:
    x = torch.rand(1, 3, 4, 6)
    for item in (x, x[0], (x,), [x], (x, 5), (x[0], torch.tensor(5)), x.numpy(), (x.double().numpy(), 5)):
        (found,) = taken([item])
        assert torch.equal(found.inputs[0], x)
        labelled = isinstance(item, tuple) and len(item) == 2
        assert (found.label is not None and int(found.label) == 5) if labelled else found.label is None


def test_batches_are_taken_apart() -> None:
    x, labels = torch.rand(5, 3, 4, 6), torch.arange(5)
    found = taken([(x[:3], labels[:3]), [x[3:], labels[3:]]])
    assert torch.equal(torch.cat([sample.inputs[0] for sample in found]), x)
    assert [int(sample.label) for sample in found] == [0, 1, 2, 3, 4]
    assert [len(taken(x)), len(taken(x, limit=2))] == [5, 2]


def test_two_inputs_are_not_an_input_and_a_label() -> None:
    example = (torch.zeros(1, 4), torch.zeros(1, 2, dtype=torch.int64))
    pair = torch.rand(1, 4), torch.ones(1, 2, dtype=torch.int32)
    (found,) = taken([pair], example)
    assert found.inputs[1].dtype == torch.int64 and found.label is None
    (found,) = taken([(*pair, 3)], example)
    assert found.label == 3
    (found,) = taken([{"mask": pair[1], "x": pair[0], "more": 1}], example, keywords=Keywords(["x", "mask"]))
    assert torch.equal(found.inputs[0], pair[0])


def test_keywords_after_arguments_are_in_the_order_of_forward() -> None:
    x, first, second = torch.rand(1, 4), torch.zeros(1, 2), torch.ones(1, 2)
    (found,) = taken([((x,), {"second": second, "first": first})], (x, first, first), keywords=Keywords(["first", "second"]))
    assert all(map(torch.equal, found.inputs, (x, first, second)))


def test_data_sets_end() -> None:
    class Squares(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return torch.full((3, 4, 6), float(index)), index

    assert [sample.label for sample in taken(Squares())] == [0, 1, 2]


def test_samples_are_stacked_for_examples_without_a_batch_dimension() -> None:
    stacked = torch.rand(8, 4, 3)
    found = taken(stacked, (torch.zeros(4, 3),))
    assert len(found) == 8 and all(torch.equal(sample.inputs[0], x) for sample, x in zip(found, stacked, strict=True))
    assert len(taken(torch.rand(8, 3), (torch.zeros(4, 3),))) == 2


def test_what_does_not_fit_is_named() -> None:
    for source, said in (
        (
            [torch.rand(1, 3, 4, 6), torch.rand(1, 3, 6, 4)],
            r"sample 1: expected float32\[1, 3, 4, 6\] .*, got float32\[1, 3, 6, 4\]",
        ),
        ([torch.zeros(1, 3, 4, 6, dtype=torch.uint8)], "input 0 of sample 0: expected float32 like the example input, got uint8"),
        (["nothing.npy"], "file or folder nothing.npy does not exist"),
        (7, "expected samples as an iterable of inputs, a Dataset, a batch, a file or a folder, got int"),
    ):
        with pytest.raises(EthorchError, match=said):
            taken(source)
    with pytest.raises(EthorchError, match="got int64"):
        taken([torch.tensor([[300]])], (torch.zeros(1, 1, dtype=torch.int8),))


def test_files(tmp_path: Path) -> None:
    from PIL import Image

    x = torch.rand(1, 3, 4, 6)
    for folder in ("cats", "dogs"):
        (tmp_path / folder).mkdir()
    np.save(tmp_path / "cats" / "a.npy", x.numpy())
    np.savez(tmp_path / "cats" / "b.npz", x[0].numpy())
    torch.save([x, x], tmp_path / "dogs" / "c.pt")
    Image.new("RGB", (60, 40), (255, 0, 51)).save(tmp_path / "dogs" / "d.png")
    found = taken(tmp_path)
    assert [Path(sample.name.partition(",")[0]).name for sample in found] == ["a.npy", "b.npz", "c.pt", "c.pt", "d.png"]
    assert [sample.label for sample in found] == [0, 0, 1, 1, 1]
    assert torch.allclose(found[4].inputs[0][0, :, 1, 2], torch.tensor([1.0, 0.0, 0.2]))
    nhwc = taken(tmp_path / "dogs" / "d.png", (torch.zeros(1, 8, 8, 3),))[0].inputs[0]
    assert torch.allclose(nhwc[0, 0, 0], torch.tensor([1.0, 0.0, 0.2]))


def test_arrays_by_name(tmp_path: Path) -> None:
    """Arrays of an .npz have the order of the inputs with their names. A further array is the label."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor, factor: int, y: Tensor) -> Tensor:
            return x * factor + y

    x, y = torch.rand(1, 3), torch.rand(1, 3)
    user = UserModel(Scaled(), (x, 2, y))
    arrays = {"x": x.numpy(), "y": y.numpy(), "label": np.array([3])}
    for names in (("x", "y"), ("y", "x"), ("label", "y", "x")):
        np.savez(tmp_path / "a.npz", **{name: arrays[name] for name in names})
        (sample,) = read_samples(tmp_path / "a.npz", user.example_inputs, keywords=user.keywords)
        assert torch.equal(sample.inputs[0], x) and sample.inputs[1] == 2 and torch.equal(sample.inputs[2], y), names
        assert sample.label == (3 if "label" in names else None)


def test_the_label_is_the_outermost_subfolder(tmp_path: Path) -> None:
    """The files are ``class/images/file``. A class without files has an index. Hidden files and folders are ignored."""
    names = ("ant/images/a.npy", "cat/images/c.npy", "cat/d.npy", ".checkpoints/a.npy", "cat/.checkpoints/c.npy", "cat/._d.npy")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / name, np.zeros((1, 3, 4, 6), np.float32))
    (tmp_path / "bee").mkdir()
    found = {sample.name: sample.label for sample in taken(tmp_path)}
    assert found == {str(tmp_path / name): label for name, label in zip(names[:3], (0, 2, 2), strict=True)}


def test_nothing_is_read_after_the_last_sample() -> None:
    def stream() -> Iterator[torch.Tensor]:
        yield torch.rand(2, 3, 4, 6)
        yield torch.rand(1, 3, 4, 6)
        raise AssertionError("the limit is reached")

    assert len(taken(stream(), limit=3)) == 3
    assert len(taken(samples(stream(), limit=3))) == 3


def test_sounds_and_tables(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "x.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(np.array([0, 16384, -32768], "<i2").tobytes())
    (sound,) = taken(tmp_path / "x.wav", (torch.zeros(1, 3),))
    assert sound.inputs[0].tolist() == [[0.0, 0.5, -1.0]]
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    assert [sample.inputs[0].tolist() for sample in taken(tmp_path / "x.csv", (torch.zeros(1, 2),))] == [[[1, 2]], [[3, 4]]]


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "noise.png").write_bytes(b"no picture")
    (tmp_path / "x.txt").write_text("1")
    (tmp_path / "noise.wav").write_bytes(b"RIFF")
    for name, said in (
        ("objects.npy", "the file contains Python objects"),
        ("noise.png", "as .png: "),
        ("x.txt", "expected a sample file"),
        ("noise.wav", "as .wav: "),
    ):
        with pytest.raises(EthorchError, match=said):
            taken(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EthorchError, match="expected sample files"):
        taken(tmp_path / "empty")

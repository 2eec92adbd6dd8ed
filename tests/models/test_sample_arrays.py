"""Samples of a program: arrays of NumPy, where the example inputs are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ethorch.models.samples import read_samples
from ethorch.support.errors import EthorchError

pytestmark = pytest.mark.core


def only(source: object, *example: np.ndarray) -> tuple[np.ndarray, ...]:
    (found,) = read_samples(source, example)
    assert all(isinstance(x, np.ndarray) for x in found.inputs)
    return found.inputs


def test_samples_are_arrays_if_the_example_is_of_arrays(tmp_path: Path) -> None:
    example, x = np.zeros((1, 3, 4), np.float32), np.random.default_rng(0).standard_normal((3, 4))
    np.save(tmp_path / "x.npy", x)
    torch.save(torch.from_numpy(x), tmp_path / "x.pt")
    for source in (str(tmp_path / "x.npy"), str(tmp_path / "x.pt"), [x], [torch.from_numpy(x)], x[None]):
        (found,) = only(source, example)
        assert found.dtype == np.float32 and np.array_equal(found, x[None].astype(np.float32))


def test_arrays_keep_their_values_or_are_refused() -> None:
    example = np.zeros((2, 2), np.int8)
    (found,) = only([np.array([[1, -2], [3, 127]])], example)
    assert found.dtype == np.int8 and found.tolist() == [[1, -2], [3, 127]]
    for wrong in (np.array([[1, 2], [3, 128]]), np.zeros((2, 2), np.float32), np.zeros((2, 2), bool)):
        with pytest.raises(EthorchError, match="expected int8 like the example input"):
            only([wrong], example)


def test_a_picture_is_an_array(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(np.full((6, 6, 3), 255, np.uint8)).save(tmp_path / "white.png")
    (found,) = only(str(tmp_path / "white.png"), np.zeros((1, 3, 4, 4), np.float32))
    assert np.array_equal(found, np.ones((1, 3, 4, 4), np.float32))

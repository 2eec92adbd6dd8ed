"""Functions of numbers per row: tables that meet where they should, over all of a range that spans many orders of magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.reductions import sum_of_squares, tabulate
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import reference

pytestmark = pytest.mark.core


@pytest.mark.parametrize("dtype", ["INT32", "INT16"])
@pytest.mark.parametrize("least", [0.3, 9.86, 700.0])
@pytest.mark.parametrize("power", [-0.5, -0.25])
def test_a_piece_is_exactly_nothing_above_its_end(power: float, least: float, dtype: str) -> None:
    """A piece that ends a code too early adds one step of its own, which is a percent and more of what lies far above."""
    b = Builder()
    values = np.unique(np.geomspace(1, 1.07e9, 4000).astype(np.int32)).reshape(1, -1, 1)
    v = b.input("v", values.shape, "INT32")
    unit = least**power / (2.0**22 if dtype == "INT32" else 32767)
    bounds = [(bound - least) / 4 for bound in np.geomspace(least, 4.29e9 + least, 7)]
    b.graph.outputs.append(tabulate(b, v, lambda x: (4 * np.maximum(x, 0) + least) ** power, bounds, unit, dtype=dtype))
    verify(b.graph)
    found = reference(serialize(b.graph), [values])[0].astype(np.float64)
    wanted = (4 * values.astype(np.float64) + least) ** power / unit
    inside = np.abs(found - wanted) <= 0.003 * wanted + len(bounds) / 2
    assert inside[values > 1000].all()
    assert (np.abs(found - wanted) <= 0.02 * wanted + len(bounds) / 2).all()  # a few whole numbers share the first intervals


def test_the_ends_of_the_bounds_are_entries() -> None:
    """exp ends at 0, where the largest number of a softmax is: lines to an entry beyond it are a thousandth off."""
    b = Builder()
    values = np.arange(-9000, 1, dtype=np.int32).reshape(1, -1, 1)
    v = b.input("v", values.shape, "INT32")
    b.graph.outputs.append(tabulate(b, v, lambda x: np.exp(x / 800), [-9600.7, -2400.3, 0.0], 1 / 32767, dtype="INT16"))
    found = reference(serialize(b.graph), [values])[0].astype(np.float64)
    assert np.abs(found - np.exp(values / 800) * 32767).max() < 2


@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
def test_squares_of_long_narrow_rows_keep_their_bits(dtype: str) -> None:
    """Sums of two squares are small: what is divided by the length of the other axis at once has few bits left."""
    b = Builder()
    limits = np.iinfo(dtype.lower())
    values = np.random.default_rng(0).integers(limits.min + 1, limits.max, (2, 16384, 2)).astype(dtype.lower())
    x = b.input("x", values.shape, dtype)
    total, unit = sum_of_squares(b, x, 0, [1, 2], -float(limits.min))
    b.graph.outputs.append(total)
    verify(b.graph)
    found = reference(serialize(b.graph), [values])[0].ravel() * unit
    np.testing.assert_allclose(found, (values.astype(np.float64) ** 2).sum((1, 2)), rtol=1e-3)

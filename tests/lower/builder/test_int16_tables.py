"""Tables of int16: no code of theirs is further off than the function goes in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ethorch.lower.builder.int16_tables import FAR, pieces
from tests.helpers.every_code import computed, q, traced

STEEP: dict[str, tuple[Any, float, float, int]] = {  # the function, the largest input and output, tables
    "sqrt": (torch.sqrt, 4.0, 2.0, 2),
    "log": (torch.log, 4.0, 3.0, 2),
    "reciprocal": (torch.reciprocal, 4.0, 5.0, 6),
    "acos": (torch.acos, 1.0, 3.1416, 3),
    "a clamp between entries": (lambda x: x.clamp(-2.2, 1.3), 4.0, 2.3, 3),
    "exp, beyond its range": (torch.exp, 3.0, 7.4, 1),
    "gelu": (torch.nn.functional.gelu, 8.0, 8.0, 1),
}


@pytest.mark.parametrize("name", STEEP)
def test_no_code_is_further_off_than_the_function_goes_in_one(name: str) -> None:
    function, largest, most, tables = STEEP[name]
    b, x = traced(largest)
    real = function(torch.from_numpy(x.qparams.table_inputs)).numpy()
    found = computed(b, b.table(x, real, q(most)), "ethos-u55-128" if name == "sqrt" else "")
    assert sum(op.name == "TABLE" for op in b.graph.ops) == tables
    wanted = np.clip(np.nan_to_num(real.astype(np.float64), nan=np.nan) / q(most).step, -32767, 32767)
    change = np.abs(np.diff(wanted, append=wanted[-1]))
    near = np.max([np.roll(change, k) for k in range(-2, 3)], axis=0)
    known = np.isfinite(wanted[:-1]) & np.isfinite(near[:-1])
    assert known.sum() > 16000
    assert (np.abs(found - wanted[:-1]) <= np.maximum(FAR, near[:-1] / 2) + 2)[known].all()


def test_functions_that_tables_represent() -> None:
    inputs = np.arange(-32768, 32769) / 32768
    assert len(pieces(np.zeros(65537), -32768, 32767)) == 1
    assert pieces(30000 * np.sin(60 * inputs), -32768, 32767)
    assert not pieces(30000 * np.sin(600 * inputs), -32768, 32767)
    undefined = np.where(inputs < 0, 30000 * np.sin(600 * inputs), 30000 * inputs)
    assert pieces(undefined, -32768, 32767)


@pytest.mark.parametrize("periods", [16, 32, 64, 128])
def test_differences_of_entries_fit_int16(periods: int) -> None:
    """Between entries, the NPU stores the slope of an oscillating function in 16 bits."""
    codes = 32767 * np.sin(2 * np.pi * periods * np.arange(-32768, 32769) / 32768)
    for piece in pieces(codes, -32768, 32767):
        assert np.abs(np.diff(piece.entries.astype(np.int32))).max() <= 32767


def test_a_function_that_jumps_a_few_times_is_exact() -> None:
    b, x = traced(3.0)
    real = torch.nn.functional.hardshrink(torch.from_numpy(x.qparams.table_inputs)).numpy()
    found = computed(b, b.table(x, real, q(3.0), exact=True), "ethos-u85-256")
    assert np.abs(found - q(3.0).quantize(real[:-1])).max() <= 1
    assert sum(op.name == "TABLE" for op in b.graph.ops) == 3

"""A TILE of many copies is done in steps, and is compiled at once."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TUNING
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference

CASES = {
    ((1,), (37800,)): "INT16", ((1, 5), (197, 1)): "INT8", ((3, 1, 4), (11, 23, 1)): "INT8", ((2, 3, 4), (1, 1, 31)): "INT16",
    ((1, 2, 1, 6), (2, 17, 40, 1)): "INT8", ((2, 2), (3, 2)): "INT32", ((1, 1, 4, 1, 3), (1, 9, 1, 12, 1)): "INT8",
}  # fmt: skip


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits(case: tuple[tuple[int, ...], tuple[int, ...]], target: str) -> None:
    (shape, multiples), dtype = case, CASES[case]
    b = Builder()
    b.graph.outputs.append(b.emit("TILE", b.input("x", shape, dtype), multiples=multiples))
    after = rewrite(copy.deepcopy(b.graph), tuning=TUNING[target.split("-")[1]])
    verify(after)
    copies = sum(math.prod(op.attrs["multiples"]) for op in after.ops if op.name == "TILE")
    assert copies <= 16 * math.log2(math.prod(multiples))
    codes = [np.random.default_rng(1).integers(-100, 100, shape).astype(dtype.lower())]
    (found,), (wanted,) = machine(serialize(after), codes, EthosUCompileSpec(target)), reference(serialize(b.graph), codes)
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())

"""Selection of elements on NPUs without BOOL: tensors, numbers and constants, with their extreme values."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, dtype_range
from ethorch.lower.builder.truth import select_elements
from ethorch.targets.npus import TUNING
from ethorch.tosa.interpreter import run

KINDS = ("input", "constant", "number")
DTYPES = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32}
SHAPE = (40,)


def draw(generator: np.random.Generator, kind: str, dtype: str) -> np.ndarray:
    limits = np.iinfo(DTYPES[dtype])
    special = [limits.min, limits.min + 1, -1, 0, 0, 1, limits.max]
    if kind == "number":
        return np.array([generator.choice(special)]).astype(DTYPES[dtype])
    values = generator.integers(limits.min, limits.max, SHAPE, endpoint=True)
    values[: 2 * len(special)] = special * 2
    return values.astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("condition", "x", "y"), [case for case in product(KINDS[:2], KINDS, KINDS) if "input" in case])
def test_the_selected_elements_are_exact(condition: str, x: str, y: str, dtype: str) -> None:
    generator = np.random.default_rng(0)
    q = None if dtype == "INT32" else QParams((1.0,), (0,), *dtype_range(dtype), dtype)
    for _ in range(24):
        b, inputs = Builder(tuning=TUNING["u55"]), []
        arrays = [generator.integers(0, 2, SHAPE).astype(np.int8), draw(generator, x, dtype), draw(generator, y, dtype)]
        values = []
        for name, kind, array in zip("cxy", (condition, x, y), arrays, strict=True):
            stored = "INT8" if name == "c" else dtype
            inputs += [array] if kind == "input" else []
            values.append(b.input(name, SHAPE, stored) if kind == "input" else b.const(array, stored))
        c, *operands = (QTensor(value, ((0,),), None if value is values[0] else q) for value in values)
        b.graph.outputs.append(select_elements(b, c, *operands, q).value)
        (found,) = run(b.graph, inputs)
        np.testing.assert_array_equal(np.broadcast_to(found, SHAPE), np.where(*arrays))

"""Moves of many pictures are one operation each, not one a picture, and keep every bit."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import Value
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.tosa_runs import reference, run_compiled


def parts(b: Builder, dtype: str, *shapes: tuple[int, ...]) -> tuple[Value, ...]:
    return tuple(b.input(f"x{k}", shape, dtype) for k, shape in enumerate(shapes))


MOVES: dict[str, Callable[[Builder, str], Value]] = {
    "tile of pictures": lambda b, d: b.emit("TILE", *parts(b, d, (300, 2, 3, 4)), multiples=(3, 1, 1, 1)),
    "tile of all": lambda b, d: b.emit("TILE", *parts(b, d, (300, 2, 3, 4)), multiples=(2, 3, 1, 2)),
    "tile of five axes": lambda b, d: b.emit("TILE", *parts(b, d, (30, 10, 2, 3, 4)), multiples=(2, 3, 1, 2, 1)),
    "slice": lambda b, d: b.emit("SLICE", *parts(b, d, (600, 2, 3, 4)), start=(3, 0, 1, 0), size=(590, 2, 2, 4)),
    "concat of pictures": lambda b, d: b.emit("CONCAT", *parts(b, d, (600, 2, 3, 4), (20, 2, 3, 4)), axis=0),
    "concat of channels": lambda b, d: b.emit("CONCAT", *parts(b, d, (600, 2, 3, 4), (600, 2, 3, 2)), axis=3),
    "slice of a long axis": lambda b, d: b.emit("SLICE", *parts(b, d, (65537, 2, 2, 1)), start=(7, 0, 0, 0), size=(65530, 2, 2, 1)),
    "concat along a long axis": lambda b, d: b.emit("CONCAT", *parts(b, d, (65530, 2, 2, 1), (7, 2, 2, 1)), axis=0),
    "slice of 90,000 rows": lambda b, d: b.emit("SLICE", *parts(b, d, (300, 300, 3, 4)), start=(0, 0, 1, 0), size=(300, 300, 2, 4)),
    "concat of a prime number of rows": lambda b, d: b.emit("CONCAT", *parts(b, d, (65537, 1, 1, 2), (65537, 1, 1, 2)), axis=3),
    "pad of 131,988 rows": lambda b, d: b.emit(
        "PAD", *parts(b, d, (65994, 1, 2, 2)), padding=(0, 0, 0, 0, 0, 0, 1, 2), pad_const=3
    ),
    "tile of a prime number of rows": lambda b, d: b.emit("TILE", *parts(b, d, (65537, 1, 1, 2)), multiples=(1, 1, 1, 3)),
    "pad": lambda b, d: b.emit("PAD", *parts(b, d, (600, 2, 3, 4)), padding=(1, 2, 0, 0, 1, 1, 0, 3), pad_const=3),
}


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("dtype", ["INT8", "INT16", "INT32"])
@pytest.mark.parametrize("move", MOVES)
def test_moves_of_many_pictures(move: str, dtype: str, target: str) -> None:
    b = Builder()
    b.graph.outputs.append(MOVES[move](b, dtype))
    after = rewrite(copy.deepcopy(b.graph), tuning=TARGETS[target].tuning)
    verify(after)
    rng = np.random.default_rng(1)
    codes = [rng.integers(-100, 100, value.shape).astype(dtype.lower()) for value in b.graph.inputs]
    compiled = vela.compile(serialize(after), EthosUCompileSpec(target))
    (found,), (wanted,) = run_compiled(compiled, codes), reference(serialize(b.graph), codes)
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())
    assert len(compiled.command_stream) < 1_000

"""Elementwise operators that broadcast over many axes become few operations, and no bit changes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TUNING
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import reference, run_compiled

#: Operands, and how many axes are left.
SHAPES = {
    ((400, 3, 2, 4), (1, 1, 1, 4)): 2,
    ((400, 3, 2, 4), (400, 1, 2, 1)): 4,  # nothing to join
    ((400, 3, 2, 4), (1, 3, 1, 1)): 3,
    ((1, 200, 3, 2, 2, 4), (1, 1, 1, 1, 2, 4)): 2,
    ((9, 1, 30, 2, 4), (9, 5, 1, 1, 4)): 4,
    ((16, 5000, 2, 1), (1, 1, 2, 1)): 3,  # 80,000 places are two axes
    ((2000, 3, 2, 4), (2000, 1, 2, 1)): 2,  # so many that copies along the last axis pay
    ((2000, 1, 2, 3, 2), (1, 3, 2, 1, 2)): 3,
    ((1, 1, 1, 1, 1), (2, 1, 3, 1, 4)): 1,  # Vela would read the first operand as if it had all elements
}


def graph_of(name: str, shapes: tuple[tuple[int, ...], ...], constant: bool = False) -> Graph:
    b = Builder()
    x, y = b.input("x", shapes[0], "INT8"), b.input("y", shapes[1], "INT8")
    if constant:
        y = b.const(np.random.default_rng(1).integers(-99, 99, shapes[1]).astype(np.int8))
        b.graph.inputs.pop()
    total = b.emit(name, b.rescale(x, 2.0**19, input_zp=4, dtype="INT32"), b.rescale(y, 2.0**19, input_zp=4, dtype="INT32"))
    b.graph.outputs.append(b.emit("CLAMP", b.rescale(total, 0.6 * 2.0**-19, output_zp=4), min_val=-90, max_val=90))
    return b.graph


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["ADD", "MAXIMUM"])
def test_few_operations_and_the_same_bits(name: str, shapes: tuple[tuple[int, ...], ...], target: str) -> None:
    check(graph_of(name, shapes), SHAPES[shapes], target)


def test_constants() -> None:
    check(graph_of("ADD", ((400, 3, 2, 4), (1, 1, 2, 4)), constant=True), 2, "ethos-u55-128")


def check(graph: Graph, rank: int, target: str) -> None:
    rng = np.random.default_rng(0)
    codes = [rng.integers(-128, 128, value.shape).astype(np.int8) for value in graph.inputs]
    wanted = reference(serialize(copy.deepcopy(graph)), codes)[0]
    spec = EthosUCompileSpec(target)
    rewritten = rewrite(graph, TUNING[target.split("-")[1]])
    verify(rewritten)
    assert {len(op.result.shape) for op in rewritten.ops if op.name in ("ADD", "MAXIMUM")} == {rank}
    tosa = serialize(rewritten)
    np.testing.assert_array_equal(reference(tosa, codes)[0], wanted)
    compiled = vela.compile(tosa, spec)
    np.testing.assert_array_equal(run_compiled(compiled, codes)[0].ravel(), wanted.ravel())
    if rank < 4:
        assert len(compiled.command_stream) < 4000

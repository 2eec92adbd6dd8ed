"""Transposes in steps: the same bits in fewer of Vela's cycles."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.support.errors import VelaError
from ethorch.targets.npus import TARGETS, TUNING
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import run_compiled

NUMPY = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32}


def transposed(shape: tuple[int, ...], perms: tuple[int, ...], dtype: str = "INT8") -> Graph:
    b = Builder()
    b.graph.outputs.append(b.emit("TRANSPOSE", b.input("x", shape, dtype), perms=perms))
    return b.graph


def compiled(graph: Graph, target: str) -> vela.CompiledModel:
    return vela.compile(serialize(graph), EthosUCompileSpec(target))


def check(shape: tuple[int, ...], perms: tuple[int, ...], dtype: str, target: str) -> int:
    """The machine's result is NumPy's; the number of steps."""
    graph = rewrite(transposed(shape, perms, dtype), tuning=TARGETS[target].tuning)
    verify(graph)
    info = np.iinfo(NUMPY[dtype])
    x = np.random.default_rng(7).integers(info.min, info.max, shape, endpoint=True).astype(NUMPY[dtype])
    (found,) = run_compiled(compiled(graph, target), [x], ("uninitialized", "overlap"))
    np.testing.assert_array_equal(found.reshape(graph.outputs[0].shape), x.transpose(perms), err_msg=f"{shape} {perms} {target}")
    return sum(op.name == "TRANSPOSE" for op in graph.ops)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize(
    ("shape", "perms"),
    [
        ((2, 7, 4, 7, 32), (0, 3, 2, 1, 4)),
        ((4, 7, 4, 7, 32), (2, 0, 3, 1, 4)),
        ((3, 4, 16, 4, 16), (1, 3, 0, 2, 4)),
        ((19, 3, 3, 64), (0, 2, 1, 3)),
        ((19, 3, 3, 64), (2, 1, 0, 3)),
    ],
)
def test_steps_take_fewer_cycles(shape, perms, target) -> None:
    graph = transposed(shape, perms)
    own = compiled(graph, target).performance.total_cycles
    steps = compiled(rewrite(transposed(shape, perms), tuning=TARGETS[target].tuning), target).performance.total_cycles
    assert check(shape, perms, "INT8", target) > 1
    assert steps < 0.8 * own


def test_single_elements_move_in_steps_on_u55() -> None:
    shape, perms = (8, 8, 16, 2, 2), (0, 3, 1, 4, 2)
    own = compiled(transposed(shape, perms), "ethos-u55-128").performance.total_cycles
    steps = rewrite(transposed(shape, perms), tuning=TARGETS["ethos-u55-128"].tuning)
    assert compiled(steps, "ethos-u55-128").performance.total_cycles < 0.6 * own
    assert check(shape, perms, "INT8", "ethos-u55-128") > 1
    assert check(shape, perms, "INT16", "ethos-u55-128") > 1
    assert check(shape, perms, "INT8", "ethos-u65-256") == 1  # there it takes more


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256"])
@pytest.mark.parametrize(
    ("shape", "perms"),
    [
        ((3, 129600), (1, 0)),
        ((66000, 3), (1, 0)),
        ((3, 270, 480, 4), (1, 2, 0, 3)),
        ((2, 70000, 3), (1, 0, 2)),
        ((2, 3, 70000), (0, 2, 1)),
    ],
)
def test_axes_too_long_for_vela(shape, perms, target) -> None:
    with pytest.raises(VelaError, match="Transpose"):
        compiled(transposed(shape, perms), target)
    assert check(shape, perms, "INT8", target) > 1


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256"])
@pytest.mark.parametrize(
    ("shape", "perms", "dtype", "count"),
    [
        ((2, 65537), (1, 0), "INT8", 2),  # a prime: no steps are short enough
        ((2, 2, 21, 2, 500), (2, 3, 4, 0, 1), "INT32", 1),
        ((300, 2, 300, 2), (0, 2, 1, 3), "INT8", 2),
        ((2, 3, 16385), (1, 0, 2), "INT32", 2),
        ((3, 2, 65537), (1, 0, 2), "INT32", 5),
        ((2, 3, 20000), (1, 2, 0), "INT32", 1),  # the same as of two axes, which Vela takes
        ((2, 20001, 3), (2, 1, 0), "INT32", 2),
        ((2, 200, 2, 200), (0, 2, 1, 3), "INT32", 2),
    ],
)
def test_extents_that_vela_refuses(shape, perms, dtype, count, target) -> None:
    with pytest.raises(VelaError, match="Transpose"):
        compiled(transposed(shape, perms, dtype), target)
    assert check(shape, perms, dtype, target) == count


@pytest.mark.parametrize("perms", [(1, 0, 2), (2, 1, 0), (0, 3, 1, 2), (3, 0, 1, 2)])
def test_what_vela_does_in_one_stays(perms) -> None:
    shape = (6, 14, 20, 18)[: len(perms)]
    for form in ("u55", "u85"):
        assert len(rewrite(transposed(shape, perms), tuning=TUNING[form]).ops) == 1


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_no_step_is_longer_than_vela_takes(target) -> None:
    """The blocks of a large map would have more than 65,536 places."""
    check((270, 2, 270, 2, 2), (0, 2, 1, 3, 4), "INT8", target)
    graph = rewrite(transposed((300, 2, 300, 2, 4), (2, 0, 3, 1, 4)), tuning=TARGETS[target].tuning)
    assert all(max(op.operands[0].shape) <= 65536 for op in graph.ops if op.name == "TRANSPOSE")
    compiled(graph, target)


def some(seed: int) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """(shape, perms, dtype): rank 4 to 6, the last axis stays."""
    r = random.Random(seed)
    rank = r.choice([4, 5, 5, 6])
    shape = tuple(r.choice([1, 2, 3, 4, 5, 7, 8, 16]) for _ in range(rank - 1)) + (r.choice([1, 3, 8, 16, 24, 33]),)
    return shape, (*r.sample(range(rank - 1), rank - 1), rank - 1), r.choice(["INT8", "INT8", "INT16", "INT32"])


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_some(target) -> None:
    assert sum(check(*some(seed), target) > 1 for seed in range(25)) > 3


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_many(target) -> None:
    refused = 0
    for seed in range(300):
        shape, perms, dtype = some(seed)
        try:
            check(shape, perms, dtype, target)
        except VelaError:  # [2,1280,33] of INT32 on U55, one step as it is
            with pytest.raises(VelaError):
                compiled(transposed(shape, perms, dtype), target)
            refused += 1
    assert refused < 3


def test_large_ones_of_five_axes_are_few_operations_on_u65() -> None:
    """Vela makes 131,000 operations of this one, which an im2col needs, and twice the cycles."""
    shape, perms = (2, 2, 2, 16_383, 2), (0, 2, 4, 1, 3)
    graph = transposed(shape, perms)
    own = compiled(graph, "ethos-u65-256")
    steps = compiled(rewrite(transposed(shape, perms), tuning=TARGETS["ethos-u65-256"].tuning), "ethos-u65-256")
    assert len(own.command_stream) > 2_000_000 and len(steps.command_stream) < 1_000
    assert steps.performance.total_cycles < 0.6 * own.performance.total_cycles
    assert check(shape, perms, "INT8", "ethos-u65-256") > 1


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256"])
def test_pieces_are_done_in_steps(target) -> None:
    """As they are, the two pieces of this one, a mean's, are 65,538 operations: 3.9 MB of commands on U55."""
    shape, perms = (32_769, 2, 2, 2), (0, 2, 1, 3)
    graph = rewrite(transposed(shape, perms, "INT16"), tuning=TARGETS[target].tuning)
    assert len(compiled(graph, target).command_stream) < 2_000
    assert check(shape, perms, "INT16", target) == 4

"""A TILE of many copies in a few steps: Vela makes each copy an operation of its own, and its time grows with their square."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ethorch.tosa.ir import Graph, Op, Value

#: What ``forms["tile"]`` names: cycles of one copy, cycles a byte. 1000 copies of one INT16 take 800,000 cycles (u65-256) and
#: 792,000 (u85-256), in steps of 10 about 25,000; 37,800 copies kept Vela 5.2 busy for minutes.
COSTS: Mapping[str, tuple[float, float]] = {"npu": (800.0, 1.0)}
_BYTES = {"INT32": 4, "INT16": 2}


def tiles_in_steps(graph: Graph, form: str | None) -> None:
    """Each TILE becomes one for each axis that it repeats, or several, if they are estimated to be faster.

    Args:
        form: the target's ``forms["tile"]``; None leaves the graph as it is.
    """
    if form is None:
        return
    ops: list[Op] = []
    for op in graph.ops:
        ops += _steps(op, *COSTS[form]) if op.name == "TILE" else [op]
    graph.ops = ops


def _steps(op: Op, one: float, byte: float) -> list[Op]:
    multiples = op.attrs["multiples"]
    ops: list[Op] = []
    value, shape = op.operands[0], list(op.operands[0].shape)

    def then(name: str, attrs: dict[str, object]) -> None:
        nonlocal value
        made = Value(f"{op.result.name}_step_{len(ops)}", tuple(shape), value.dtype, op.result.origin)
        ops.append(Op(name, (value,), attrs, (made,)))
        value = made

    for axis in reversed(range(len(shape))):
        wanted = shape[axis] * multiples[axis]
        size = math.prod(shape) * multiples[axis] * _BYTES.get(value.dtype, 1)
        for factor in _factors(multiples[axis], one, byte * size):
            shape[axis] *= factor
            then("TILE", {"multiples": tuple(factor if k == axis else 1 for k in range(len(shape)))})
        if shape[axis] > wanted:
            shape[axis] = wanted
            then("SLICE", {"start": (0,) * len(shape), "size": tuple(shape)})
    if not ops or [step.name for step in ops] == ["TILE"]:
        return [op]
    ops[-1].results = op.results
    return ops


def _factors(copies: int, one: float, all_bytes: float) -> list[int]:
    """Factors whose product is at least ``copies``, the cheapest there are of about one size."""
    if copies == 1:
        return []
    best, least = [copies], math.inf
    for count in range(1, copies.bit_length() + 1):
        factor = math.ceil(round(copies ** (1 / count), 9))
        last = -(-copies // factor ** (count - 1))
        if last < 2:
            continue
        factors = [factor] * (count - 1) + [last]
        excess = math.prod(factors) / copies
        cost = one * sum(factors) + all_bytes * (excess * (1 + 1 / last) + (excess > 1)) * (count > 1)
        if cost < least:
            best, least = factors, cost
    return best

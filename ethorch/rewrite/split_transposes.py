"""A TRANSPOSE of many axes in steps that the NPU runs faster: each exchanges two neighbouring blocks of axes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

from ethorch.rewrite.rewriter import Rewriter
from ethorch.target.tuning import TransposeCost
from ethorch.tosa.ir import Op
from ethorch.tosa.layout import arrangement

#: Bytes of an element, as the NPU holds it.
_BYTES = {"INT8": 1, "INT16": 2, "INT32": 4}

#: Longest axis of a TRANSPOSE: Vela 5.2 refuses longer ones on U55 and U65.
_LONGEST = 65536

Axes = tuple[int, ...]
Shape = tuple[int, int, int]


def split_transposes(r: Rewriter, cost: TransposeCost) -> None:
    """Each TRANSPOSE that keeps its last axis and moves three or more becomes several, if they are estimated to be faster.

    One that moves its last axis does so where the target moves single elements as fast as rows.
    So does one with an axis that is too long for Vela.
    """
    for op in r.named("TRANSPOSE"):
        if op.result.dtype in _BYTES and (steps := _steps(op, cost)):
            at, value = r.before(op), op.operands[0]
            for shape in steps:
                value = at.emit("TRANSPOSE", at.reshape(value, *shape), perms=(1, 0, 2))
            r.replace(op, at.reshape(value, *op.result.shape))


def _steps(op: Op, cost: TransposeCost) -> list[Shape]:
    """What is reshaped to and has its first two axes exchanged, step by step; nothing if ``op`` is best as it is."""
    arranged = arrangement(op.operands[0].shape, op.attrs["perms"])
    if arranged is None:
        return []
    refused = cost.refuses_long_axes and max(arranged[0]) > _LONGEST
    if refused:
        arranged = _shortened(*arranged)
    elif len(arranged[1]) < 4:
        return []
    elif arranged[1][-1] != len(arranged[1]) - 1:
        if not cost.of_single_elements:
            return []
        arranged = (*arranged[0], 1), (*arranged[1], len(arranged[1]))
    (*extents, row), perm = arranged
    row_bytes = row * _BYTES[op.result.dtype]
    pairs = all(perm[perm[axis]] == axis for axis in perm)
    own = cost.vela_cycles_per_byte * (1 if pairs else 2)
    most = math.inf if refused else own * math.prod(extents) * row_bytes

    def estimate(first: int, second: int, inner: int) -> float:
        fits = max(first, second, inner * row) <= _LONGEST
        return cost.cycles(first, second, inner * row_bytes) if fits else math.inf

    path = _cheapest(extents, tuple(perm[:-1]), estimate, most)
    return [(first, second, inner * row) for first, second, inner in path]


def _shortened(extents: Sequence[int], perm: Sequence[int]) -> tuple[Axes, Axes]:
    """As a TRANSPOSE whose axes are at most ``_LONGEST``, where they have divisors, and whose last axis stays."""
    parts: list[list[int]] = []
    for extent in extents:
        divisor = next(k for k in range(math.isqrt(extent), 0, -1) if extent % k == 0) if extent > _LONGEST else 1
        parts.append([divisor, extent // divisor] if divisor > 1 else [extent])
    first = [sum(len(part) for part in parts[:axis]) for axis in range(len(parts))]
    split = tuple(first[axis] + k for axis in perm for k in range(len(parts[axis])))
    whole = tuple(extent for part in parts for extent in part)
    return (whole, split) if split[-1] == len(whole) - 1 else ((*whole, 1), (*split, len(whole)))


def _cheapest(
    extents: Sequence[int], wanted: Axes, cycles: Callable[[int, int, int], float], most: float
) -> list[tuple[int, int, int]]:
    """The steps (extents of the first block, the second, what lies behind) that order axes as ``wanted``; none above ``most``.

    Dijkstra's algorithm over the orders of the axes.
    """
    start = tuple(range(len(extents)))
    best: dict[Axes, float] = {start: 0.0}
    came: dict[Axes, tuple[Axes, tuple[int, int, int]]] = {}
    heap = [(0.0, start)]
    while heap:
        spent, order = heapq.heappop(heap)
        if order == wanted:
            break
        if spent > best[order]:
            continue
        for following, step in _exchanges(order, extents):
            total = spent + cycles(*step)
            if total < min(best.get(following, most), most):
                best[following], came[following] = total, (order, step)
                heapq.heappush(heap, (total, following))
    if wanted not in came:
        return []
    path, order = [], wanted
    while order != start:
        order, step = came[order]
        path.append(step)
    return path[::-1]


def _exchanges(order: Axes, extents: Sequence[int]) -> Iterator[tuple[Axes, tuple[int, int, int]]]:
    """What one step can make of ``order``: the leading block of axes and the one behind it change places."""
    n = len(order)
    for i in range(1, n):
        for j in range(i + 1, n + 1):
            blocks = order[:i], order[i:j], order[j:]
            a, b, inner = (math.prod(extents[axis] for axis in block) for block in blocks)
            yield blocks[1] + blocks[0] + blocks[2], (a, b, inner)

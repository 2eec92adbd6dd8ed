"""A TRANSPOSE of many axes in steps that the NPU runs faster: each exchanges two neighbouring blocks of axes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from ethorch.layout import arrangement
from ethorch.tosa.ir import Graph, Op, Value

#: Bytes of an element, as the NPU holds it.
_BYTES = {"INT8": 1, "INT16": 2, "INT32": 4}

#: Longest axis of a TRANSPOSE: Vela 5.2 refuses longer ones on U55 and U65.
_LONGEST = 65536

Axes = tuple[int, ...]


def _u55(first: int, second: int, inner: int) -> float:
    """Cycles to bring [first, second, inner], in bytes, to [second, first, inner]: 0.25 to 0.38 a byte on u55-128.

    Measured over [24,16,40], [100,7,16], [6,10,320] and others; a fixed part lets a small tensor stay as it is.
    """
    return 0.4 * first * second * inner + 100


def _u85(first: int, second: int, inner: int) -> float:
    """As ``_u55``, on u85-256: a row of ``inner`` bytes takes 10 cycles or 0.77 a byte, more where a block is narrow.

    Measured over extents of 2 to 672 and rows of 1 to 256 bytes: [64,64,16] takes 9 cycles a row, [100,7,16] 78, [3,100,16]
    83, [672,14,16] 153, [14,672,16] 33.
    """
    narrow = 2200 / min(first, second) ** 2
    uneven = max(3.2 * first / second, 0.7 * second / first) if inner < 64 else 0.0
    return first * second * max(10.0, 0.77 * inner, narrow, uneven) + 2000


#: What ``forms["permute"]`` names: (cycles of a step, cycles a byte that Vela's own way takes at least; where it is more than
#: an exchange of axes in pairs, twice that).
#: Of [8,7,8,7,96] to [8,8,7,7,96], a window partition, U55 takes 827,904 cycles and in steps 338,688, U85 2,397,726 and 613,335.
COSTS: Mapping[str, tuple[Callable[[int, int, int], float], float]] = {"u55": (_u55, 1.5), "u85": (_u85, 3.0)}


def transposes_in_steps(graph: Graph, form: str | None) -> None:
    """Each TRANSPOSE that keeps its last axis and moves three or more becomes several, if they are estimated to be faster.

    So does one on U55 and U65 with an axis that is too long for Vela.

    Args:
        form: the target's ``forms["permute"]``; None leaves the graph as it is.
    """
    if form is None:
        return
    cycles, own = COSTS[form]
    ops: list[Op] = []
    for op in graph.ops:
        steps = _steps(op, cycles, own, form) if op.name == "TRANSPOSE" and op.result.dtype in _BYTES else []
        ops.extend(steps or [op])
    graph.ops = ops


def _steps(op: Op, cycles: Callable[[int, int, int], float], own: float, form: str) -> list[Op]:
    """The steps that replace ``op``; none if it is best as it is."""
    source, result = op.operands[0], op.result
    arranged = arrangement(source.shape, op.attrs["perms"])
    if arranged is None:
        return []
    refused = form == "u55" and max(arranged[0]) > _LONGEST
    if refused:
        arranged = _shortened(*arranged)
    elif len(arranged[1]) < 4 or arranged[1][-1] != len(arranged[1]) - 1:
        return []
    (*extents, row), perm = arranged
    row_bytes = row * _BYTES[result.dtype]
    pairs = all(perm[perm[axis]] == axis for axis in perm)
    most = math.inf if refused else (own if pairs else 2 * own) * math.prod(extents) * row_bytes

    def estimate(first: int, second: int, inner: int) -> float:
        fits = max(first, second, inner * row) <= _LONGEST
        return cycles(first, second, inner * row_bytes) if fits else math.inf

    path = _cheapest(extents, tuple(perm[:-1]), estimate, most)
    ops: list[Op] = []
    value = source
    for number, (first, second, inner) in enumerate(path):
        shape = (first, second, inner * row)
        flat, moved = (
            Value(f"{result.name}_step_{number}{end}", extent, result.dtype, result.origin)
            for end, extent in (("", shape), ("_done", (shape[1], shape[0], shape[2])))
        )
        ops.append(Op("RESHAPE", (value,), {"shape": flat.shape}, (flat,)))
        ops.append(Op("TRANSPOSE", (flat,), {"perms": (1, 0, 2)}, (moved,)))
        value = moved
    return [*ops, Op("RESHAPE", (value,), {"shape": result.shape}, (result,))] if ops else []


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

"""A TRANSPOSE of many axes in steps that the NPU runs faster, or that Vela takes: each exchanges two blocks of axes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.targets.tuning import TransposeCost
from ethorch.tosa.ir import Value
from ethorch.tosa.layout import arrangement

#: Bytes of an element, as the NPU holds it.
_BYTES = {"INT8": 1, "INT16": 2, "INT32": 4}

#: Longest axis of a TRANSPOSE: Vela 5.2 refuses longer ones on U55 and U65.
_LONGEST = 65536
#: As how many places an element counts along an axis that is moved as a whole: of INT32 Vela moves bytes.
_PLACES = {"INT32": 4}

Axes = tuple[int, ...]
Shape = tuple[int, int, int]

#: perm -> the axis that others change places around.
_WHOLE: dict[Axes, int] = {(1, 0, 2): 2, (2, 1, 0): 1}


def split_transposes(r: Rewriter, cost: TransposeCost) -> None:
    """Each TRANSPOSE that keeps its last axis and moves three or more becomes several, if they are estimated to be faster.

    One that moves its last axis does so where the target moves single elements as fast as rows.
    So does one that Vela refuses for its extents. Where no steps are short enough, its pieces are transposed, and joined.
    """
    for op in r.named("TRANSPOSE"):
        dtype, operand, perms = op.result.dtype, op.operands[0], op.attrs["perms"]
        arranged = arrangement(operand.shape, perms)
        if dtype not in _BYTES or arranged is None:
            continue
        at = r.before(op)
        fewest = arranged == (operand.shape, tuple(perms)) or math.prod(operand.shape) * _PLACES.get(dtype, 1) <= _LONGEST
        if cost.refuses_long_axes and not (fewest and _is_taken(*arranged, dtype)):
            r.replace(op, at.reshape(_taken(at, operand, *arranged, cost), *op.result.shape))
        elif steps := _steps(*arranged, dtype, cost):
            r.replace(op, at.reshape(_in_steps(at, operand, steps), *op.result.shape))


def _in_steps(at: Place, value: Value, steps: Sequence[Shape]) -> Value:
    for shape in steps:
        value = at.emit("TRANSPOSE", at.reshape(value, *shape), perms=(1, 0, 2))
    return value


def _is_taken(shape: Sequence[int], perm: Sequence[int], dtype: str) -> bool:
    """Does Vela 5.2 surely take this TRANSPOSE on U55 and U65?

    Found by trying each extent from 1 to 65,600, those of INT32 to 40,000: no axis may have more than 65,536 places. An axis that
    others change places around counts four for each INT32; of four axes and more, pairs count as one.
    """
    axes, each = tuple(perm), _PLACES.get(dtype, 1)
    if axes in ((1, 0), (0, 2, 1)):
        return max(shape) <= _LONGEST
    if axes in _WHOLE:
        return max(shape) <= _LONGEST and each * shape[_WHOLE[axes]] <= _LONGEST
    return each * math.prod(sorted(shape)[-2:]) <= _LONGEST


def _taken(at: Place, value: Value, shape: Axes, perm: Axes, cost: TransposeCost) -> Value:
    """``value``, reshaped to ``shape`` and its axes ordered as ``perm`` says, by what ``_is_taken``, in steps that are faster."""
    is_taken = _is_taken(shape, perm, value.dtype)
    if steps := _steps(shape, perm, value.dtype, cost, refused=not is_taken):
        return at.reshape(_in_steps(at, value, steps), *(shape[axis] for axis in perm))
    if is_taken:
        return at.emit("TRANSPOSE", at.reshape(value, *shape), perms=perm)
    each, around = _PLACES.get(value.dtype, 1), _WHOLE.get(perm)
    if around is not None and each * shape[around] > _LONGEST:
        axis, longest = around, _LONGEST // each
    else:
        axis = max(range(len(shape)), key=shape.__getitem__)
        longest = min(_LONGEST, -(-shape[axis] // 2))
    (folded, place), pieces = _around(shape, axis), []
    behind, whole = perm.index(axis), at.reshape(value, *folded)
    for start in range(0, shape[axis], longest):
        size = (*shape[:axis], min(longest, shape[axis] - start), *shape[axis + 1 :])
        cut, _ = _around(size, axis)
        piece = at.emit("SLICE", whole, start=tuple(start if k == place else 0 for k in range(len(cut))), size=cut)
        made, there = _around([size[k] for k in perm], behind)
        pieces.append(at.reshape(_taken(at, piece, size, perm, cost), *made))
    return at.reshape(at.emit("CONCAT", *pieces, axis=there), *(shape[k] for k in perm))


def _around(shape: Sequence[int], axis: int) -> tuple[Axes, int]:
    """``shape`` as what is in front of ``axis``, it, and what is behind, and its place there; as it is, where one is too long.

    Of more axes than three, Vela makes an operation of each index of the others.
    """
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return ((outer, shape[axis], inner), 1) if max(outer, inner) <= _LONGEST else (tuple(shape), axis)


def _steps(shape: Axes, perm: Axes, dtype: str, cost: TransposeCost, *, refused: bool = False) -> list[Shape]:
    """What is reshaped to and has its first two axes exchanged, step by step; nothing where it is best as it is.

    Args:
        shape, perm: of what is transposed, in as few axes as possible.
        refused: Vela takes no such TRANSPOSE: any steps are better.
    """
    arranged = shape, perm
    if refused:
        arranged = _shortened(*arranged)
    elif len(perm) < 4:
        return []
    elif perm[-1] != len(perm) - 1:
        many = cost.fewest_single_elements
        if not cost.of_single_elements and (many is None or len(perm) < 5 or math.prod(shape) < many):
            return []
        arranged = (*shape, 1), (*perm, len(perm))
    (*extents, row), perm = arranged
    row_bytes = row * _BYTES[dtype]
    pairs = all(perm[perm[axis]] == axis for axis in perm)
    own = cost.vela_cycles_per_byte * (1 if pairs else 2)
    most = math.inf if refused else own * math.prod(extents) * row_bytes

    def estimate(first: int, second: int, inner: int) -> float:
        fits = max(first, second, inner * row * _PLACES.get(dtype, 1)) <= _LONGEST
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

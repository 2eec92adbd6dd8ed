"""Split TRANSPOSEs of many axes into faster or supported TRANSPOSEs, each of which exchanges two blocks of axes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.targets.tuning import TransposeCost
from ethorch.tosa.ir import Value
from ethorch.tosa.layout import arrangement

#: Bytes of an element on the NPU.
_BYTES = {"INT8": 1, "INT16": 2, "INT32": 4}

#: Longest axis of a TRANSPOSE that Vela 5.2 supports on U55 and U65.
_LONGEST = 65536
#: Number of positions of an INT32 element along an axis that moves as a whole, because Vela moves its bytes.
_PLACES = {"INT32": 4}

Axes = tuple[int, ...]
Shape = tuple[int, int, int]

#: For each permutation, the axis around which other axes are exchanged.
_WHOLE: dict[Axes, int] = {(1, 0, 2): 2, (2, 1, 0): 1}


def split_transposes(r: Rewriter, cost: TransposeCost) -> None:
    """Split TRANSPOSEs of four or more axes, counted after merging adjacent axes, if this is estimated to be faster.

    A TRANSPOSE whose extents Vela refuses is always split, if necessary into sections that are concatenated.
    """
    for op in r.select("TRANSPOSE"):
        dtype, operand, perms = op.result.dtype, op.operands[0], op.attrs["perms"]
        arranged = arrangement(operand.shape, perms)
        if dtype not in _BYTES or arranged is None:
            continue
        at = r.before(op)
        fewest = arranged == (operand.shape, tuple(perms)) or math.prod(operand.shape) * _PLACES.get(dtype, 1) <= _LONGEST
        if cost.refuses_long_axes and not (fewest and _is_supported(*arranged, dtype)):
            r.replace(op, at.reshape(_transpose_supported(at, operand, *arranged, cost), *op.result.shape))
        elif steps := _steps(*arranged, dtype, cost):
            r.replace(op, at.reshape(_in_steps(at, operand, steps), *op.result.shape))


def _in_steps(at: Place, value: Value, steps: Sequence[Shape]) -> Value:
    for shape in steps:
        value = at.emit("TRANSPOSE", at.reshape(value, *shape), perms=(1, 0, 2))
    return value


def _is_supported(shape: Sequence[int], perm: Sequence[int], dtype: str) -> bool:
    # Determined by experiments with extents up to 65,600. No axis may exceed 65,536 elements. An INT32 axis around which other axes
    # are exchanged counts four times. For four or more axes, the limit applies to the product of the two longest axes.
    axes, each = tuple(perm), _PLACES.get(dtype, 1)
    if axes in ((1, 0), (0, 2, 1)):
        return max(shape) <= _LONGEST
    if axes in _WHOLE:
        return max(shape) <= _LONGEST and each * shape[_WHOLE[axes]] <= _LONGEST
    return each * math.prod(sorted(shape)[-2:]) <= _LONGEST


def _transpose_supported(at: Place, value: Value, shape: Axes, perm: Axes, cost: TransposeCost) -> Value:
    is_supported = _is_supported(shape, perm, value.dtype)
    if steps := _steps(shape, perm, value.dtype, cost, refused=not is_supported):
        return at.reshape(_in_steps(at, value, steps), *(shape[axis] for axis in perm))
    if is_supported:
        return at.emit("TRANSPOSE", at.reshape(value, *shape), perms=perm)
    each, around = _PLACES.get(value.dtype, 1), _WHOLE.get(perm)
    if around is not None and each * shape[around] > _LONGEST:
        axis, longest = around, _LONGEST // each
    else:
        axis = max(range(len(shape)), key=shape.__getitem__)
        longest = min(_LONGEST, -(-shape[axis] // 2))
    (folded, place), pieces = _around(shape, axis), []
    target_axis, reshaped = perm.index(axis), at.reshape(value, *folded)
    for start in range(0, shape[axis], longest):
        size = (*shape[:axis], min(longest, shape[axis] - start), *shape[axis + 1 :])
        cut, _ = _around(size, axis)
        piece = at.emit("SLICE", reshaped, start=tuple(start if k == place else 0 for k in range(len(cut))), size=cut)
        piece_shape, concat_axis = _around([size[k] for k in perm], target_axis)
        pieces.append(at.reshape(_transpose_supported(at, piece, size, perm, cost), *piece_shape))
    return at.reshape(at.emit("CONCAT", *pieces, axis=concat_axis), *(shape[k] for k in perm))


def _around(shape: Sequence[int], axis: int) -> tuple[Axes, int]:
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return ((outer, shape[axis], inner), 1) if max(outer, inner) <= _LONGEST else (tuple(shape), axis)


def _steps(shape: Axes, perm: Axes, dtype: str, cost: TransposeCost, *, refused: bool = False) -> list[Shape]:
    arranged = shape, perm
    if refused:
        arranged = _shorten(*arranged)
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
    cycles_per_byte = cost.vela_cycles_per_byte * (1 if pairs else 2)
    most = math.inf if refused else cycles_per_byte * math.prod(extents) * row_bytes

    def estimate(first: int, second: int, inner: int) -> float:
        fits = max(first, second, inner * row * _PLACES.get(dtype, 1)) <= _LONGEST
        return cost.cycles(first, second, inner * row_bytes) if fits else math.inf

    path = _cheapest(extents, tuple(perm[:-1]), estimate, most)
    return [(first, second, inner * row) for first, second, inner in path]


def _shorten(extents: Sequence[int], perm: Sequence[int]) -> tuple[Axes, Axes]:
    parts: list[list[int]] = []
    for extent in extents:
        divisor = next(k for k in range(math.isqrt(extent), 0, -1) if extent % k == 0) if extent > _LONGEST else 1
        parts.append([divisor, extent // divisor] if divisor > 1 else [extent])
    first = [sum(len(part) for part in parts[:axis]) for axis in range(len(parts))]
    split = tuple(first[axis] + k for axis in perm for k in range(len(parts[axis])))
    factors = tuple(extent for part in parts for extent in part)
    return (factors, split) if split[-1] == len(factors) - 1 else ((*factors, 1), (*split, len(factors)))


def _cheapest(
    extents: Sequence[int], target: Axes, cycles: Callable[[int, int, int], float], most: float
) -> list[tuple[int, int, int]]:
    start = tuple(range(len(extents)))
    best: dict[Axes, float] = {start: 0.0}
    came: dict[Axes, tuple[Axes, tuple[int, int, int]]] = {}
    heap = [(0.0, start)]
    while heap:
        spent, order = heapq.heappop(heap)
        if order == target:
            break
        if spent > best[order]:
            continue
        for following, step in _exchanges(order, extents):
            total = spent + cycles(*step)
            if total < min(best.get(following, most), most):
                best[following], came[following] = total, (order, step)
                heapq.heappush(heap, (total, following))
    if target not in came:
        return []
    path, order = [], target
    while order != start:
        order, step = came[order]
        path.append(step)
    return path[::-1]


def _exchanges(order: Axes, extents: Sequence[int]) -> Iterator[tuple[Axes, tuple[int, int, int]]]:
    n = len(order)
    for i in range(1, n):
        for j in range(i + 1, n + 1):
            blocks = order[:i], order[i:j], order[j:]
            a, b, inner = (math.prod(extents[axis] for axis in block) for block in blocks)
            yield blocks[1] + blocks[0] + blocks[2], (a, b, inner)

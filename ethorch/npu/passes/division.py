"""Run operations part by part if that reduces peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ethorch.npu.cycles import estimate
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes import block_sizes
from ethorch.npu.passes.allocation import allocate, count_bytes
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.placement import separate
from ethorch.npu.passes.reorder import Window, WindowSearch

#: Maximum operations that a search of windows visits and creates. It lasts one to five seconds.
_WORK = (4_000, 4_000)
#: Share of the bytes that a search must save for the next search to start.
_PROMISING = 0.25
#: Share of cycles that parts may add.
TOLERANCE = 0.01
#: Minimum share of the bytes that parts must save, as for smaller arenas.
_WORTH = 0.04
#: Share of cycles that parts may add per share of the bytes that they save.
_PRICE = 1 / 8
#: Minimum bytes of a region for which windows are searched, which takes seconds.
LEAST_BYTES = 128 << 10


def run(stream: Stream, context: Context) -> Stream | None:
    """Return a stream with at least 4% fewer region bytes and at most 1% more cycles, or None.

    The share of cycles that is added is at most an eighth of the share of bytes that is saved.
    """
    if max(stream.image.sizes.values(), default=0) < LEAST_BYTES:
        return None
    most, best = int(context.rate(stream) * (1 + TOLERANCE)), stream
    for work in _WORK:
        smaller = _divide(best, context, most, work)
        if smaller is None:
            break
        is_promising = count_bytes(smaller) <= (1 - _PROMISING) * count_bytes(best)
        best = smaller
        if not is_promising:
            break
    return None if best is stream else best


def _divide(stream: Stream, context: Context, most: int, work: int) -> Stream | None:
    separation = separate(stream, divide=False)  # as allocate
    apart, lifetimes = separation.stream, separation.lifetimes
    sizes = apart.image.allocated

    def rate(ops: Sequence[Op]) -> int:
        return estimate(replace(apart, ops=list(ops)), context.regions, context.effects).cycles

    def refine(ops: Sequence[Op]) -> Sequence[Op]:
        if context.passes is not None and "block-sizes" not in context.passes:
            return ops
        changed = block_sizes.run(replace(apart, ops=list(ops)), Context(context.regions, effects=context.effects))
        return ops if changed is None else changed.ops

    budget = most - context.rate(stream)
    windows = WindowSearch(apart.ops, lifetimes, sizes, stream.new_key(), rate, refine, budget, work).run()
    used = sorted({window.region for window in windows})
    choices = [windows, *([window for window in windows if window.region == region] for region in used if len(used) > 1)]
    for choice in choices:
        best = _apply_needed(stream, apart, choice, context, most)
        if best is not None:
            return best
    return None


def _apply_needed(stream: Stream, apart: Stream, windows: Sequence[Window], context: Context, most: int) -> Stream | None:
    best = None
    while windows:
        allocation = allocate(apply_windows(apart, windows))
        after = allocation.stream
        fits = all(size <= context.limit(stream, region) for region, size in after.image.sizes.items())
        is_smaller = count_bytes(after) < count_bytes(stream) and (best is None or count_bytes(after) <= count_bytes(best))
        if not fits or not is_smaller or context.rate(after) > most:
            break
        best = after
        needed = [window for window in windows if window.peak > allocation.bounds[window.region]]
        if len(needed) == len(windows):
            break
        windows = needed
    return best if best is not None and _is_worth(stream, best, context) else None


def _is_worth(before: Stream, after: Stream, context: Context) -> bool:
    saved = 1 - count_bytes(after) / count_bytes(before)
    added = context.rate(after) / context.rate(before) - 1
    return saved >= _WORTH and added <= _PRICE * saved


def apply_windows(apart: Stream, windows: Sequence[Window]) -> Stream:
    """Replace units by the parts of windows. BLOCKDEP is derived again for these and for the kernels after them."""
    groups = group_chains(apart.ops)
    marked: list[tuple[Op, bool]] = []  # operations, and whether they belong to a window
    at = 0
    for window in windows:
        marked += [(op, False) for group in groups[at : window.first] for op in group]
        marked += [(op, True) for op in window.ops]
        at = window.end
    marked += [(op, False) for group in groups[at:] for op in group]
    ops: list[Op] = []
    follows = False
    for op, is_inside in marked:
        if not op.is_dma:
            op = replace(op, before=None) if is_inside or follows else op
            follows = is_inside
        ops.append(op)
    return replace(apart, ops=ops)

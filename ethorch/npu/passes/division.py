"""Run operations part by part if that reduces peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ethorch.npu.cycles import estimate
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.encode import has_conflict
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes.allocation import allocate, count_bytes
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.placement import separate
from ethorch.npu.passes.reorder import Window, find_windows

#: Operations that the searches of windows may visit and create, in about one second.
_WORK = (2_000, 500)
#: Share of cycles that parts may add, as for smaller arenas (``ethorch.vela.arena``).
TOLERANCE = 0.005
#: Minimum share of the bytes that parts must save, as for smaller arenas.
_WORTH = 0.04
#: Minimum bytes of a region for which windows are searched, which takes seconds.
LEAST_BYTES = 128 << 10


def run(stream: Stream, context: Context) -> Stream | None:
    """Return a stream with at least 4% fewer region bytes and at most 0.5% more cycles, or None."""
    if max(stream.image.sizes.values(), default=0) < LEAST_BYTES:
        return None
    most, best = int(context.rate(stream) * (1 + TOLERANCE)), stream
    for work in _WORK:
        smaller = _divide(best, context, most, work)
        if smaller is None:
            break
        best = smaller
    return None if best is stream else best


def _divide(stream: Stream, context: Context, most: int, work: int) -> Stream | None:
    separation = separate(stream)
    apart, lifetimes = separation.stream, separation.lifetimes
    sizes = apart.image.allocated

    def rate(ops: Sequence[Op]) -> int:
        return estimate(replace(apart, ops=list(ops)), context.regions, context.effects).cycles

    windows = find_windows(apart.ops, lifetimes, sizes, stream.new_key(), rate, most - context.rate(stream), work)
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
        after = allocate(apply_windows(apart, windows)).stream
        fits = all(size <= context.limit(stream, region) for region, size in after.image.sizes.items())
        is_smaller = count_bytes(after) < count_bytes(stream) and (best is None or count_bytes(after) <= count_bytes(best))
        if not fits or not is_smaller or context.rate(after) > most:
            break
        best = after
        needed = [window for window in windows if window.peak > after.image.sizes[window.region]]
        if len(needed) == len(windows):
            break
        windows = needed
    return best if best is not None and count_bytes(best) <= (1 - _WORTH) * count_bytes(stream) else None


def apply_windows(apart: Stream, windows: Sequence[Window]) -> Stream:
    groups = group_chains(apart.ops)
    ops: list[Op] = []
    at = 0
    for window in windows:
        ops += [op for group in groups[at : window.first] for op in group]
        ops += window.ops
        at = window.end
    ops += [op for group in groups[at:] for op in group]
    return replace(apart, ops=limit_blockdep(ops))


def limit_blockdep(ops: Sequence[Op]) -> list[Op]:
    """Set BLOCKDEP to 0 for each kernel that conflicts with the previous kernel, if either kernel is new."""
    result: list[Op] = []
    before: Op | None = None
    for op in ops:
        if op.is_dma:
            result.append(op)
            continue
        is_new_pair = before is not None and (op.key < 0 or before.key < 0)
        if before is not None and is_new_pair and op.registers.get("BLOCKDEP") and has_conflict(before, op):
            op = op.copy(BLOCKDEP=0)
        result.append(op)
        before = op
    return result

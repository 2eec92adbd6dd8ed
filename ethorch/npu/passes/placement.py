"""Move segments to other addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.image import Place
from ethorch.npu.passes.accesses import list_reads, list_writes
from ethorch.npu.passes.lifetimes import Lifetimes, find_lifetimes
from ethorch.npu.passes.segments import ALIGNMENT, Segment


def move_segments(stream: Stream, lifetimes: Lifetimes, moves: Sequence[int], sizes: Mapping[int, int]) -> Stream:
    """Return the stream with segments moved by multiples of ALIGNMENT."""
    image = stream.image
    ops = [_move(op, position, image.sizes, lifetimes, moves) for position, op in enumerate(stream.ops)]
    inputs, outputs = _move_places(image.inputs, lifetimes.inputs, moves), _move_places(image.outputs, lifetimes.outputs, moves)
    return replace(stream, ops=ops, image=replace(image, sizes={**image.sizes, **sizes}, inputs=inputs, outputs=outputs))


@dataclass(frozen=True)
class Separation:
    """A stream with disjoint segments."""

    stream: Stream
    lifetimes: Lifetimes
    moves: Sequence[int]  # bytes by which each segment was moved


def separate(stream: Stream, *, divide: bool = True) -> Separation:
    """Move the segments of a stream to disjoint addresses. See ``find_lifetimes`` for ``divide``."""
    image = stream.image
    sizes = image.allocated
    lifetimes = find_lifetimes(stream.ops, sizes, image.inputs, image.outputs, divide=divide)
    ends = dict.fromkeys(sizes, 0)
    moves, segments = [], []
    for segment in lifetimes.segments:
        _, low, high = segment.space
        move = ends[segment.region] - low
        moves.append(move)
        ends[segment.region] = high + move
        pieces = tuple(replace(piece, low=piece.low + move, high=piece.high + move) for piece in segment.pieces)
        segments.append(Segment(segment.region, segment.low + move, segment.high + move, pieces))
    return Separation(move_segments(stream, lifetimes, moves, ends), replace(lifetimes, segments=segments, permits=[]), moves)


def round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _move(op: Op, position: int, sizes: Mapping[int, int], lifetimes: Lifetimes, moves: Sequence[int]) -> Op:
    changed = {}
    for access in (*list_reads(op, sizes), *list_writes(op, sizes)):
        for run in access.runs:
            move = moves[lifetimes.accesses[position, run.register]]
            if move:
                changed[run.register] = run.base + move
    return op.copy(**changed) if changed else op


def _move_places(places: Sequence[Place], segments: Sequence[int], moves: Sequence[int]) -> tuple[Place, ...]:
    return tuple(
        (region, low + moves[segment], high + moves[segment]) if segment >= 0 else (region, low, high)
        for (region, low, high), segment in zip(places, segments, strict=True)
    )

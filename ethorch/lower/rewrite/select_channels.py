"""Rearrange the weights of convolutions, so that their inputs do not need a channel shuffle.

For example, a 1x1 convolution can read all original channels, with zero weights for unused channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.rewrite.rescale_to_depthwise import is_plain
from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value
from ethorch.tosa.opset import BY_ONE, KERNEL_1X1

_MOVES = ("RESHAPE", "TRANSPOSE", "SLICE", "CONCAT")

Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Channels:
    sources: tuple[Value, ...]
    channels: Places

    @property
    def count(self) -> int:
        return sum(source.shape[3] for source in self.sources)

    @property
    def is_source(self) -> bool:
        return len(self.sources) == 1 and np.array_equal(self.channels, np.arange(self.count))

    @property
    def is_double(self) -> bool:
        return len(np.unique(self.channels)) < len(self.channels)

    @property
    def is_order(self) -> bool:
        return not self.is_source and self.count == self.channels.size and not self.is_double


def select_channels(r: Rewriter, most: int) -> None:
    """Change convolutions and RESCALEs that read rearranged channels, so that they read the original channels.

    ``most`` is the maximum number of input channels of a convolution that selects channels.
    """
    if any(True for _ in r.select("CONCAT")):
        selection = _Selection(r, most)
        for op in r:
            selection.try_on(op)


class _Selection:
    def __init__(self, r: Rewriter, most: int):
        self.r, self.most = r, most
        self.twins: dict[Value, tuple[Value, Places]] = {}  # NHWC form of each value, and the position of each element in it
        self.joined: dict[tuple[Value, ...], Value] = {}
        self.mixed: dict[Value, tuple[Value, Places]] = {}  # new result for each depthwise result, and the order of its channels

    def try_on(self, op: Op) -> None:
        source = op.operands[0] if op.operands else None
        if source is None or source.rank != 4:
            return
        convolves = source.dtype == "INT8" and len(op.operands) > 1 and op.operands[1].is_const
        if op.name == "CONV2D" and convolves and op.attrs["weight_zp"] == 0:
            self.convolution(op)
        elif op.name == "DEPTHWISE_CONV2D" and convolves:
            self.depthwise(op)
        elif op.name == "RESCALE" and source in self.mixed:
            self.rescale_of_depthwise(op)
        elif op.name == "CONCAT" and op.result.dtype == "INT8":
            self.concatenation(op)
        elif is_plain(op):
            self.rescale(op)

    # --- replacements -------------------------------------------------------------------------------------------------

    def convolution(self, op: Op) -> None:
        weight = op.operands[1].data
        channels = self.find_channels(op.operands[0])
        if channels is None or weight is None:
            return
        taps = math.prod(weight.shape[1:3])
        if not channels.is_source and (taps > 1 or channels.is_double or channels.count > min(self.most, 2 * weight.shape[3])):
            return
        at = self.r.before(op)
        picking = np.zeros((*weight.shape[:3], channels.count), weight.dtype)
        picking[..., channels.channels] = weight
        self.r.replace(op, at.again(op, self.join(at, channels), at.constant(picking, op.operands[1].dtype)))

    def depthwise(self, op: Op) -> None:
        weight, bias = (value.data for value in op.operands[1:])
        channels = self.find_channels(op.operands[0])
        if channels is None or weight is None or bias is None or weight.shape[3] != 1:
            return
        if not channels.is_order or self.r.uses(op.result) > 1:
            return
        order, at = np.argsort(channels.channels), self.r.before(op)
        weights = at.constant(np.ascontiguousarray(weight[:, :, order]), op.operands[1].dtype)
        biases = at.constant(bias[order], op.operands[2].dtype) if bias.size > 1 else op.operands[2]
        self.mixed[op.result] = at.again(op, self.join(at, channels), weights, biases), order

    def rescale_of_depthwise(self, op: Op) -> None:
        source, order = self.mixed[op.operands[0]]
        factors: dict[str, Any] = {}
        if op.attrs["per_channel"]:
            factors = {key: tuple(op.attrs[key][channel] for channel in order) for key in ("multiplier", "shift")}
        result = self.r.before(op).again(op, source, **factors)
        self.twins[op.result] = result, _number_elements(result.shape)[..., np.argsort(order)]

    def rescale(self, op: Op) -> None:
        at = self.r.before(op)
        if (selected := self.pick(at, op.operands[0], op.result, op.attrs)) is not None:
            self.r.replace(op, at.emit("TRANSPOSE", selected, perms=(0, 3, 1, 2)))

    def concatenation(self, op: Op) -> None:
        for value in op.operands:
            if value not in self.twins:
                self.pick(self.r.before(op, of=value), value, value, BY_ONE)

    def pick(self, at: Place, moved: Value, value: Value, attrs: Mapping[str, Any]) -> Value | None:
        _, c, h, w = moved.shape
        channels = self.find_channels(moved, (0, 2, 3, 1))
        if channels is None or channels.is_source or channels.count > self.most or h * w == 1:
            return None
        picking = np.zeros((c, 1, 1, channels.count), np.int8)
        picking[np.arange(c), 0, 0, channels.channels] = 1
        weight, bias = at.constant(picking, "INT8"), at.constant(np.zeros(1, np.int32), "INT32")
        wide = at.emit("CONV2D", self.join(at, channels), weight, bias, **{**KERNEL_1X1, "input_zp": attrs["input_zp"]})
        result = at.emit("RESCALE", wide, **{**attrs, "input_zp": 0})
        self.twins[value] = result, _number_elements(result.shape).transpose(0, 3, 1, 2)
        return result

    # --- sources of channels ------------------------------------------------------------------------------------------

    def join(self, at: Place, channels: _Channels) -> Value:
        if len(channels.sources) == 1:
            return channels.sources[0]
        if channels.sources not in self.joined:
            self.joined[channels.sources] = at.emit("CONCAT", *channels.sources, axis=3)
        return self.joined[channels.sources]

    def find_channels(self, value: Value, perms: Sequence[int] = (0, 1, 2, 3)) -> _Channels | None:
        moves = self.moves(value)
        leaves = [operand for operand in moves if moves[operand] is None]
        if not any(leaf in self.twins for leaf in leaves) and not any(op and op.name == "TRANSPOSE" for op in moves.values()):
            return None
        shape = tuple(value.shape[axis] for axis in perms)
        sources: list[Value] = []
        for leaf in leaves:
            nhwc = self.twins[leaf][0] if leaf in self.twins else leaf
            if nhwc.rank != 4 or nhwc.shape[:3] != shape[:3]:
                return None
            if nhwc not in sources:
                sources.append(nhwc)
        bases = np.cumsum([0, *(math.prod(source.shape) for source in sources)])
        places = self.places(moves, dict(zip(sources, bases, strict=False))).transpose(perms)
        first = places[0, 0, 0]
        owner = np.searchsorted(bases, first, side="right") - 1
        extents = np.array([source.shape[3] for source in sources])
        positions = np.arange(math.prod(shape[:3])).reshape(*shape[:3], 1)
        if (first - bases[owner] >= extents[owner]).any() or (places != first + positions * extents[owner]).any():
            return None
        return _Channels(tuple(sources), np.cumsum([0, *extents])[owner] + first - bases[owner])

    def moves(self, value: Value) -> dict[Value, Op | None]:
        order: dict[Value, Op | None] = {}
        pending = [value]
        while pending:
            op = None if pending[-1] in self.twins else self.r.producer(pending[-1], *_MOVES)
            unvisited = [operand for operand in op.operands if operand not in order] if op else []
            if unvisited:
                pending += reversed(unvisited)
            else:
                order.setdefault(pending.pop(), op)
        return order

    def places(self, moves: dict[Value, Op | None], bases: Mapping[Value, int]) -> Places:
        positions: dict[Value, Places] = {}
        for value, op in moves.items():
            parts = [positions[operand] for operand in op.operands] if op else []
            if value in self.twins:
                source, places = self.twins[value]
                positions[value] = places + bases[source]
            elif op is None:
                positions[value] = _number_elements(value.shape) + bases[value]
            elif op.name == "RESHAPE":
                positions[value] = parts[0].reshape(value.shape)
            elif op.name == "TRANSPOSE":
                positions[value] = parts[0].transpose(op.attrs["perms"])
            elif op.name == "CONCAT":
                positions[value] = np.concatenate(parts, op.attrs["axis"])
            else:
                cut = zip(op.attrs["start"], op.attrs["size"], strict=True)
                positions[value] = parts[0][tuple(slice(start, start + size) for start, size in cut)]
        return positions[next(reversed(moves))]


def _number_elements(shape: Sequence[int]) -> Places:
    return np.arange(math.prod(shape)).reshape(shape)

"""Channels that are picked, mixed or put together between convolutions are picked by the convolutions' weights.

A channel shuffle is a RESHAPE, a TRANSPOSE and a RESHAPE, mostly with slices and concatenations around it: the NPU moves
every byte several times. A convolution with a kernel of one that reads the channels where they were first takes no longer:
its weights for channels that it does not want are zero.
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

_MOVES = ("RESHAPE", "TRANSPOSE", "SLICE", "CONCAT")
#: A convolution with a kernel of one.
_WINDOW = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "weight_zp": 0}
#: A RESCALE that changes nothing.
_ONE: dict[str, Any] = {
    "multiplier": (1 << 30,), "shift": (30,), "input_zp": 0, "output_zp": 0, "dtype": "INT8", "per_channel": False,
    "input_unsigned": False, "output_unsigned": False,
}  # fmt: skip

Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Found:
    """Where each channel of an NHWC value comes from: the sources, NHWC, and for each channel its number in them, joined."""

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
        """Is a channel there twice? Its two weights have a sum that may be no weight."""
        return len(np.unique(self.channels)) < len(self.channels)

    @property
    def is_order(self) -> bool:
        """Are these all channels of the sources, in another order?"""
        return not self.is_source and self.count == self.channels.size and not self.is_double


def select_channels(r: Rewriter, most: int) -> None:
    """Let convolutions and rescales of rearranged channels read them where they are, if that is estimated to be faster.

    No bit changes: sums get terms of zero, and a copy is a product with one.

    Args:
        most: channels that are read for a copy of some of them.
    """
    if any(True for _ in r.named("CONCAT")):
        selection = _Selection(r, most)
        for op in r:
            selection.try_on(op)


class _Selection:
    def __init__(self, r: Rewriter, most: int):
        self.r, self.most = r, most
        self.twins: dict[Value, tuple[Value, Places]] = {}  # of a value: an NHWC one, and where in it each element is
        self.joined: dict[tuple[Value, ...], Value] = {}
        self.mixed: dict[Value, tuple[Value, Places]] = {}  # of a DEPTHWISE_CONV2D's result: the new one, its channels' order

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

    # --- what is replaced ---------------------------------------------------------------------------------------------

    def convolution(self, op: Op) -> None:
        weight = op.operands[1].data
        found = self.found(op.operands[0])
        if found is None or weight is None:
            return
        taps = math.prod(weight.shape[1:3])
        if not found.is_source and (taps > 1 or found.is_double or found.count > min(self.most, 2 * weight.shape[3])):
            return
        at = self.r.before(op)
        picking = np.zeros((*weight.shape[:3], found.count), weight.dtype)
        picking[..., found.channels] = weight
        self.r.replace(op, at.again(op, self.join(at, found), at.constant(picking, op.operands[1].dtype)))

    def depthwise(self, op: Op) -> None:
        """In the order of the sources; who reads the result is told."""
        weight, bias = (value.data for value in op.operands[1:])
        found = self.found(op.operands[0])
        if found is None or weight is None or bias is None or weight.shape[3] != 1:
            return
        if not found.is_order or self.r.uses(op.result) > 1:
            return
        order, at = np.argsort(found.channels), self.r.before(op)
        weights = at.constant(np.ascontiguousarray(weight[:, :, order]), op.operands[1].dtype)
        biases = at.constant(bias[order], op.operands[2].dtype) if bias.size > 1 else op.operands[2]
        self.mixed[op.result] = at.again(op, self.join(at, found), weights, biases), order

    def rescale_of_depthwise(self, op: Op) -> None:
        source, order = self.mixed[op.operands[0]]
        factors: dict[str, Any] = {}
        if op.attrs["per_channel"]:
            factors = {key: tuple(op.attrs[key][channel] for channel in order) for key in ("multiplier", "shift")}
        result = self.r.before(op).again(op, source, **factors)
        self.twins[op.result] = result, _counted(result.shape)[..., np.argsort(order)]

    def rescale(self, op: Op) -> None:
        """Its result in NCHW is transposed from NHWC, if anyone wants it."""
        at = self.r.before(op)
        if (picked := self.pick(at, op.operands[0], op.result, op.attrs)) is not None:
            self.r.replace(op, at.emit("TRANSPOSE", picked, perms=(0, 3, 1, 2)))

    def concatenation(self, op: Op) -> None:
        """What it puts together of channels of several tensors is one tensor first, or every later one would read them all."""
        for value in op.operands:
            if value not in self.twins:
                self.pick(self.r.before(op, of=value), value, value, _ONE)

    def pick(self, at: Place, moved: Value, value: Value, attrs: Mapping[str, Any]) -> Value | None:
        """``value``, NCHW, the RESCALE of ``moved`` with ``attrs``, as a convolution that picks and has an NHWC result."""
        _, c, h, w = moved.shape
        found = self.found(moved, (0, 2, 3, 1))
        if found is None or found.is_source or found.count > self.most or h * w == 1:
            return None
        picking = np.zeros((c, 1, 1, found.count), np.int8)
        picking[np.arange(c), 0, 0, found.channels] = 1
        one, zero = at.constant(picking, "INT8"), at.constant(np.zeros(1, np.int32), "INT32")
        wide = at.emit("CONV2D", self.join(at, found), one, zero, input_zp=attrs["input_zp"], **_WINDOW)
        result = at.emit("RESCALE", wide, **{**attrs, "input_zp": 0})
        self.twins[value] = result, _counted(result.shape).transpose(0, 3, 1, 2)
        return result

    # --- where channels come from -------------------------------------------------------------------------------------

    def join(self, at: Place, found: _Found) -> Value:
        """The sources next to each other, made once."""
        if len(found.sources) == 1:
            return found.sources[0]
        if found.sources not in self.joined:
            self.joined[found.sources] = at.emit("CONCAT", *found.sources, axis=3)
        return self.joined[found.sources]

    def found(self, value: Value, perms: Sequence[int] = (0, 1, 2, 3)) -> _Found | None:
        """Where the channels of ``value``, transposed by ``perms`` to NHWC, come from.

        None if more than channels was moved, or nothing through a TRANSPOSE: what is cut and joined in NHWC costs little.
        """
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
        which = np.searchsorted(bases, first, side="right") - 1
        extents = np.array([source.shape[3] for source in sources])
        positions = np.arange(math.prod(shape[:3])).reshape(*shape[:3], 1)
        if (first - bases[which] >= extents[which]).any() or (places != first + positions * extents[which]).any():
            return None
        return _Found(tuple(sources), np.cumsum([0, *extents])[which] + first - bases[which])

    def moves(self, value: Value) -> dict[Value, Op | None]:
        """What ``value`` is moved from, and itself, operands first: each with the operator that moves it there, None for a leaf."""
        order: dict[Value, Op | None] = {}
        waiting = [value]
        while waiting:
            op = None if waiting[-1] in self.twins else self.r.producer(waiting[-1], *_MOVES)
            later = [operand for operand in op.operands if operand not in order] if op else []
            if later:
                waiting += reversed(later)
            else:
                order.setdefault(waiting.pop(), op)
        return order

    def places(self, moves: dict[Value, Op | None], bases: Mapping[Value, int]) -> Places:
        """For each element of the last of ``moves`` its place in the sources, one after the other."""
        known: dict[Value, Places] = {}
        for value, op in moves.items():
            parts = [known[operand] for operand in op.operands] if op else []
            if value in self.twins:
                source, places = self.twins[value]
                known[value] = places + bases[source]
            elif op is None:
                known[value] = _counted(value.shape) + bases[value]
            elif op.name == "RESHAPE":
                known[value] = parts[0].reshape(value.shape)
            elif op.name == "TRANSPOSE":
                known[value] = parts[0].transpose(op.attrs["perms"])
            elif op.name == "CONCAT":
                known[value] = np.concatenate(parts, op.attrs["axis"])
            else:
                cut = zip(op.attrs["start"], op.attrs["size"], strict=True)
                known[value] = parts[0][tuple(slice(start, start + size) for start, size in cut)]
        return known[next(reversed(moves))]


def _counted(shape: Sequence[int]) -> Places:
    """The places of a tensor's elements, in its shape."""
    return np.arange(math.prod(shape)).reshape(shape)

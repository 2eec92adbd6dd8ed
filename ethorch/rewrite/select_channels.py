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

from ethorch.tosa.ir import Graph, Op, Value
from ethorch.tosa.uses import Context, drop_dead

_MOVES = ("RESHAPE", "TRANSPOSE", "SLICE", "CONCAT")

#: What ``forms["channels"]`` names: the most channels that are read for a copy of some of them. Of [1,28,28,116] two halves are
#: shuffled in 230,000 cycles and picked in 70,000 (u55-128).
MOST: Mapping[str, int] = {"u55": 512, "u85": 1024}


#: A RESCALE that changes nothing.
_ONE: dict[str, Any] = {
    "multiplier": (1 << 30,), "shift": (30,), "input_zp": 0, "output_zp": 0, "dtype": "INT8", "per_channel": False,
    "input_unsigned": False, "output_unsigned": False,
}  # fmt: skip


@dataclass(frozen=True)
class _Found:
    """Where each channel of an NHWC value comes from: the sources, NHWC, and for each channel its number in them, joined."""

    sources: tuple[Value, ...]
    channels: np.ndarray

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


def pick_channels(graph: Graph, form: str | None) -> None:
    """Let convolutions and rescales of rearranged channels read them where they are, if that is estimated to be faster.

    No bit changes: sums get terms of zero, and a copy is a product with one.

    Args:
        form: the target's ``forms["channels"]``; None leaves the graph as it is.
    """
    if form is None or not any(op.name == "CONCAT" for op in graph.ops):
        return
    picker = _Picker(graph, MOST[form])
    before = graph.ops
    graph.ops = [new for op in before for new in picker.replaced(op)]
    if picker.picked:
        drop_dead(graph)
    else:
        graph.ops = before


class _Picker:
    def __init__(self, graph: Graph, most: int):
        self.context, self.most = Context(graph), most
        self.picked = 0
        self.twins: dict[int, tuple[Value, np.ndarray]] = {}  # of a value: an NHWC one, and where in it each element is
        self.joined: dict[tuple[int, ...], Value] = {}
        self.wide: dict[int, tuple[Value, np.ndarray]] = {}  # of a DEPTHWISE_CONV2D's result: the new one, its channels' order

    def replaced(self, op: Op) -> list[Op]:
        source = op.operands[0] if op.operands else None
        if source is None or source.rank != 4:
            return [op]
        if op.name == "CONV2D" and source.dtype == "INT8" and op.operands[1].data is not None and op.attrs["weight_zp"] == 0:
            return self.convolution(op)
        if op.name == "DEPTHWISE_CONV2D" and source.dtype == "INT8" and op.operands[1].data is not None:
            return self.depthwise(op)
        if op.name == "RESCALE" and id(source) in self.wide:
            return self.rescale_of_depthwise(op)
        if op.name == "CONCAT" and op.result.dtype == "INT8":
            return self.concatenation(op)
        plain = op.name == "RESCALE" and source.dtype == op.result.dtype == "INT8" and not op.attrs["per_channel"]
        if plain and not (op.attrs["input_unsigned"] or op.attrs["output_unsigned"]):
            return self.rescale(op)
        return [op]

    # --- what is replaced ---------------------------------------------------------------------------------------------

    def convolution(self, op: Op) -> list[Op]:
        weight = op.operands[1]
        found = self.found(op.operands[0])
        if found is None or weight.data is None:
            return [op]
        taps = math.prod(weight.shape[1:3])
        if not found.is_source and (taps > 1 or found.is_double or found.count > min(self.most, 2 * weight.shape[3])):
            return [op]
        ops, source = self.join(found, op)
        data = np.zeros((*weight.shape[:3], found.count), weight.data.dtype)
        data[..., found.channels] = weight.data
        picked = Value(f"{weight.name}_of_{op.result.name}", data.shape, weight.dtype, weight.origin, data)
        self.picked += 1
        return [*ops, Op(op.name, (source, picked, *op.operands[2:]), op.attrs, op.results)]

    def depthwise(self, op: Op) -> list[Op]:
        """In the order of the sources; who reads the result is told."""
        weight = op.operands[1]
        found = self.found(op.operands[0])
        bias = op.operands[2]
        if found is None or weight.data is None or bias.data is None or weight.shape[3] != 1:
            return [op]
        if not self.is_order(found) or self.context.uses[id(op.result)] > 1:
            return [op]
        order = np.argsort(found.channels)
        ops, source = self.join(found, op)
        data = weight.data[:, :, order]
        mixed = Value(f"{weight.name}_of_{op.result.name}", data.shape, weight.dtype, weight.origin, np.ascontiguousarray(data))
        if bias.data.size > 1:
            bias = Value(f"{bias.name}_of_{op.result.name}", bias.shape, bias.dtype, bias.origin, bias.data[order])
        result = Value(f"{op.result.name}_mixed", op.result.shape, op.result.dtype, op.result.origin)
        self.wide[id(op.result)] = result, order
        return [*ops, Op(op.name, (source, mixed, bias), op.attrs, (result,)), op]

    def rescale_of_depthwise(self, op: Op) -> list[Op]:
        source, order = self.wide[id(op.operands[0])]
        attrs = dict(op.attrs)
        if attrs["per_channel"]:
            attrs |= {key: tuple(attrs[key][channel] for channel in order) for key in ("multiplier", "shift")}
        result = Value(f"{op.result.name}_mixed", op.result.shape, op.result.dtype, op.result.origin)
        places = np.arange(math.prod(result.shape)).reshape(result.shape)[..., np.argsort(order)]
        self.twins[id(op.result)] = result, places
        return [Op("RESCALE", (source,), attrs, (result,)), op]

    def rescale(self, op: Op) -> list[Op]:
        """Its result in NCHW is transposed from NHWC, if anyone wants it."""
        ops = self.pick(op.operands[0], op.result, op.attrs, op)
        return [*ops, Op("TRANSPOSE", (ops[-1].result,), {"perms": (0, 3, 1, 2)}, op.results)] if ops else [op]

    def concatenation(self, op: Op) -> list[Op]:
        """What it puts together of channels of several tensors is one tensor first, or every later one would read them all."""
        ops: list[Op] = []
        for value in op.operands:
            if id(value) not in self.twins:
                ops += self.pick(value, value, _ONE, op)
        return [*ops, op]

    def pick(self, moved: Value, value: Value, attrs: dict[str, Any], op: Op) -> list[Op]:
        """``value``, NCHW, the RESCALE of ``moved`` with ``attrs``, as a convolution that picks and has an NHWC result."""
        n, c, h, w = moved.shape
        found = self.found(moved, (0, 2, 3, 1))
        if found is None or found.is_source or found.count > self.most or h * w == 1:
            return []
        ops, source = self.join(found, op)
        data = np.zeros((c, 1, 1, found.count), np.int8)
        data[np.arange(c), 0, 0, found.channels] = 1
        name, origin = value.name, value.origin
        one = Value(f"{name}_one", data.shape, "INT8", origin, data)
        zero = Value(f"{name}_zero", (1,), "INT32", origin, np.zeros(1, np.int32))
        wide = Value(f"{name}_picked", (n, h, w, c), "INT32", origin)
        result = Value(f"{name}_picked_again", (n, h, w, c), "INT8", origin)
        window = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "input_zp": attrs["input_zp"], "weight_zp": 0}
        self.twins[id(value)] = result, np.arange(math.prod(result.shape)).reshape(result.shape).transpose(0, 3, 1, 2)
        self.picked += 1
        ops.append(Op("CONV2D", (source, one, zero), window, (wide,)))
        return [*ops, Op("RESCALE", (wide,), {**attrs, "input_zp": 0}, (result,))]

    # --- where channels come from -------------------------------------------------------------------------------------

    def is_order(self, found: _Found) -> bool:
        return not found.is_source and found.count == found.channels.size and not found.is_double

    def join(self, found: _Found, op: Op) -> tuple[list[Op], Value]:
        """The sources next to each other, made once."""
        if len(found.sources) == 1:
            return [], found.sources[0]
        key = tuple(id(source) for source in found.sources)
        if key in self.joined:
            return [], self.joined[key]
        shape = (*found.sources[0].shape[:3], found.count)
        value = Value(f"{op.result.name}_joined", shape, found.sources[0].dtype, op.result.origin)
        self.joined[key] = value
        return [Op("CONCAT", found.sources, {"axis": 3}, (value,))], value

    def found(self, value: Value, perms: Sequence[int] = (0, 1, 2, 3)) -> _Found | None:
        """Where the channels of ``value``, transposed by ``perms`` to NHWC, come from.

        None if more than channels was moved, or nothing through a TRANSPOSE: what is cut and joined in NHWC costs little.
        """
        leaves: list[Value] = []
        if not self.moved(value, leaves):
            return None
        shape = tuple(value.shape[axis] for axis in perms)
        sources: list[Value] = []
        for leaf in leaves:
            nhwc = self.twins[id(leaf)][0] if id(leaf) in self.twins else leaf
            if nhwc.rank != 4 or nhwc.shape[:3] != shape[:3]:
                return None
            if all(nhwc is not known for known in sources):
                sources.append(nhwc)
        bases = np.cumsum([0, *(math.prod(source.shape) for source in sources)])
        places = self.places(value, {id(source): base for source, base in zip(sources, bases, strict=False)}).transpose(perms)
        first = places[0, 0, 0]
        which = np.searchsorted(bases, first, side="right") - 1
        extents = np.array([source.shape[3] for source in sources])
        positions = np.arange(math.prod(shape[:3])).reshape(*shape[:3], 1)
        if (first - bases[which] >= extents[which]).any() or (places != first + positions * extents[which]).any():
            return None
        return _Found(tuple(sources), np.cumsum([0, *extents])[which] + first - bases[which])

    def moved(self, value: Value, leaves: list[Value]) -> bool:
        """Has ``value``, or a part of it, been through a TRANSPOSE? ``leaves`` are what its moves start from."""
        op = self.context.producer.get(id(value))
        if op is None or op.name not in _MOVES or id(value) in self.twins:
            if all(value is not leaf for leaf in leaves):
                leaves.append(value)
            return id(value) in self.twins
        parts = [self.moved(operand, leaves) for operand in op.operands]
        return any(parts) or op.name == "TRANSPOSE"

    def places(self, value: Value, bases: Mapping[int, int]) -> np.ndarray:
        """For each element of ``value`` its place in the sources, one after the other."""
        if id(value) in self.twins:
            source, places = self.twins[id(value)]
            return places + bases[id(source)]
        op = self.context.producer.get(id(value))
        if op is None or op.name not in _MOVES:
            return np.arange(math.prod(value.shape)).reshape(value.shape) + bases[id(value)]
        parts = [self.places(operand, bases) for operand in op.operands]
        if op.name == "RESHAPE":
            return parts[0].reshape(value.shape)
        if op.name == "TRANSPOSE":
            return parts[0].transpose(op.attrs["perms"])
        if op.name == "CONCAT":
            return np.concatenate(parts, op.attrs["axis"])
        return parts[0][tuple(slice(s, s + n) for s, n in zip(op.attrs["start"], op.attrs["size"], strict=True))]

"""A convolution that steps over an input of few channels reads several places of it as channels of one.

The multipliers work on blocks of channels that the three of a picture leave mostly idle. With stride 2, two columns of three
channels are one column of six, and a kernel of 7 columns, on which they need not start, is one of 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ethorch.tosa.ir import Graph, Op, Value
from ethorch.tosa.uses import Context

#: Places of a picture from which squares pay on U85: 32x32x3 is as fast either way, 96x96x3 takes 0.58 of the cycles; of INT16
#: 96x96 takes 1.2 of them, and 224x224, which SRAM does not hold, 0.62.
_LEAST_PLACES: Mapping[str, int] = {"INT8": 2048, "INT16": 20_000}
#: Taps of a kernel that U55 and U65 take at once where channels are few.
_TAPS = 4
#: Channels of a block that the multipliers take at once where channels are few; on U85, of a brick in memory.
_CHANNELS_U55, _CHANNELS_U85 = 8, 16


class _Way(NamedTuple):
    """One direction of a convolution: how ``fold`` neighbours of the input are read as one."""

    fold: int
    extent: int  # of the folded input, without what no window reads
    kernel: int
    before: int  # padding
    after: int
    lead: int  # taps of zeros before the kernel's own

    @classmethod
    def of(cls, fold: int, extent: int, kernel: int, before: int, after: int) -> _Way:
        """Of a direction with stride ``fold``; ``extent`` may leave a remainder, if the caller fills it with padding."""
        places = (extent + before + after - kernel) // fold + 1
        folded, front = -(-extent // fold), -(-before // fold)
        lead = front * fold - before
        taps = -(-(lead + kernel) // fold)
        behind = places - 1 + taps - folded - front
        return cls(fold, folded + min(behind, 0), taps, front, max(behind, 0), lead)


class _Steps:
    """Operators in a row, each of which reads the one before."""

    def __init__(self, source: Value, op: Op):
        self.value, self.ops, self._of = source, list[Op](), op.result

    def then(self, name: str, extents: tuple[int, ...], /, **attrs: Any) -> None:
        result = Value(f"{self._of.name}_folded_{len(self.ops)}", extents, self.value.dtype, self._of.origin)
        self.ops.append(Op(name, (self.value,), attrs, (result,)))
        self.value = result

    def reshape(self, *shape: int) -> None:
        self.then("RESHAPE", shape, shape=shape)

    def transpose(self, *perms: int) -> None:
        self.then("TRANSPOSE", tuple(self.value.shape[axis] for axis in perms), perms=perms)

    def crop(self, high: _Way, wide: _Way) -> None:
        """Leave out what no window reads."""
        n, height, width, channels = self.value.shape
        if (shape := (n, high.extent, wide.extent, channels)) != (n, height, width, channels):
            self.then("SLICE", shape, start=(0, 0, 0, 0), size=shape)


def fold_strides(graph: Graph, form: str | None) -> bool:
    """Fold each strided CONV2D of few channels that the NPU then runs faster. True if there was one; no bit changes.

    Args:
        form: the target's ``forms["stride"]``; None leaves the graph as it is.
    """
    if form is None:
        return False
    context, ops = Context(graph), list[Op]()
    for op in graph.ops:
        fits = op.name == "CONV2D" and op.attrs["dilation"] == (1, 1) and op.operands[1].is_const and not op.operands[0].is_const
        ops.extend((fits and FOLDS[form](op, context)) or [op])
    folded = len(ops) != len(graph.ops)
    graph.ops = ops
    return folded


def _columns(op: Op, context: Context, least: int) -> list[Op] | None:
    """Columns alone, which are neighbours in memory: a RESHAPE. ``least`` taps times channels of the result are worth it."""
    read = op.operands[0]
    cut = context.before(read, "SLICE")
    source = cut.operands[0] if cut and not any(cut.attrs["start"]) and cut.operands[0].shape[3] == read.shape[3] else read
    n, height, width, channels = source.shape
    outputs, rows, taps, _ = op.operands[1].shape
    (top, bottom, left, right), stride = op.attrs["pad"], op.attrs["stride"][1]
    if stride == 1 or width % stride or channels * stride > _CHANNELS_U55 or n != read.shape[0]:
        return None
    high, wide = _Way(1, read.shape[1], rows, top, bottom, 0), _Way.of(stride, width, taps, left, right + read.shape[2] - width)
    now, then = (_TAPS * -(-rows * columns // _TAPS) for columns in (taps, wide.kernel))
    if then >= now or (now * outputs < least and channels * stride < _CHANNELS_U55):
        return None
    steps = _Steps(source, op)
    steps.reshape(n, height, width // stride, channels * stride)
    steps.crop(high, wide)
    return [*steps.ops, _folded(op, steps.value, high, wide, "hwc")]


def _squares(op: Op, context: Context) -> list[Op] | None:
    """Rows and columns, on the way from NCHW to NHWC: three TRANSPOSEs that fill bricks, for one that leaves them mostly empty."""
    turn = context.before(op.operands[0], "TRANSPOSE")
    sy, sx = op.attrs["stride"]
    if turn is None or tuple(turn.attrs["perms"]) != (0, 2, 3, 1) or min(sy, sx) == 1:
        return None
    n, channels, height, width = turn.operands[0].shape
    if channels * sy * sx > _CHANNELS_U85 or height % sy or width % sx:
        return None
    if op.operands[0].dtype not in _LEAST_PLACES or height * width < _LEAST_PLACES[op.operands[0].dtype]:
        return None
    _, rows, columns, _ = op.operands[1].shape
    high, wide = _Way.of(sy, height, rows, *op.attrs["pad"][:2]), _Way.of(sx, width, columns, *op.attrs["pad"][2:])
    steps = _Steps(turn.operands[0], op)
    steps.reshape(n * channels * height, width // sx, sx)
    steps.transpose(0, 2, 1)
    steps.reshape(n, channels, height // sy, sy * width)
    steps.transpose(0, 2, 1, 3)
    steps.reshape(n, height // sy, channels * sy * sx, width // sx)
    steps.transpose(0, 1, 3, 2)
    steps.crop(high, wide)
    return [*steps.ops, _folded(op, steps.value, high, wide, "chw")]


def _folded(op: Op, source: Value, high: _Way, wide: _Way, order: str) -> Op:
    """The CONV2D on ``source``, whose channels are, as ``order`` says, rows (h), columns (w) and channels (c) of the input."""
    weight = op.operands[1]
    assert weight.data is not None
    outputs, rows, columns, channels = weight.shape
    whole = np.full((outputs, high.kernel * high.fold, wide.kernel * wide.fold, channels), op.attrs["weight_zp"], weight.data.dtype)
    whole[:, high.lead : high.lead + rows, wide.lead : wide.lead + columns] = weight.data
    parts = whole.reshape(outputs, high.kernel, high.fold, wide.kernel, wide.fold, channels)
    inner = [{"h": 2, "w": 4, "c": 5}[letter] for letter in order]
    data = np.ascontiguousarray(parts.transpose(0, 1, 3, *inner).reshape(outputs, high.kernel, wide.kernel, -1))
    folded = Value(f"{weight.name}_of_{op.result.name}", data.shape, weight.dtype, weight.origin, data)
    stride = tuple(s // way.fold for s, way in zip(op.attrs["stride"], (high, wide), strict=True))
    attrs = {**op.attrs, "stride": stride, "pad": (high.before, high.after, wide.before, wide.after)}
    return Op(op.name, (source, folded, *op.operands[2:]), attrs, op.results)


#: What ``forms["stride"]`` names. From 224x224x3, kernel 7x7, to 64 channels: u55-128 2,611,234 cycles, by columns 1,410,497;
#: u65-256 with few channels is bound by memory; u85-256 1,951,149 with the transpose of the input, by squares 1,083,866.
FOLDS: Mapping[str, Callable[[Op, Context], list[Op] | None]] = {
    "u55": partial(_columns, least=192), "u65": partial(_columns, least=1024), "u85": _squares,
}  # fmt: skip

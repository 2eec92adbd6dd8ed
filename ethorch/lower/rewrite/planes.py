"""Pictures that come in planes (NCHW) and are turned to NHWC: a convolution may do it that reads the planes as bricks.

In memory a picture of C planes is what a map of C * 16 channels would be in the NPU's brick format: 16 columns lie together as
the channels of a brick do, and a plane is as far from the next as one brick from another. A convolution with a kernel of one that
puts the channels in the order of pixels then writes NHWC, and costs 16 * C multiply-adds an element. TOSA cannot say how a map
lies in memory. So the graph that Vela gets reads the input in another order than it means, and ``ethorch.vela.planes`` gives the
commands that read it the strides of planes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ethorch.lower.rewrite.insert_copies import LONGEST, copied
from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import DTYPES, Graph, Op, Value

BRICK = 16  #: channels that lie together in the NPU's brick format
#: A RESCALE that changes nothing, by what the convolution adds up to.
_ONE: Mapping[str, dict[str, Any]] = {
    "INT8": {"multiplier": (1 << 30,), "shift": (30,)},
    "INT16": {"multiplier": (1 << 14,), "shift": (14,)},
}
_BYTES = {"INT8": 1, "INT16": 2}
_AS_IS = {"input_zp": 0, "output_zp": 0, "per_channel": False, "input_unsigned": False, "output_unsigned": False}
_WINDOW = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "input_zp": 0, "weight_zp": 0}


@dataclass(frozen=True)
class Planes:
    """An input that is read as bricks.

    Attributes:
        name: of the TRANSPOSE that is no more.
        input: which input of the graph it is.
        made: the results of the operators in its place.
        count: planes, which are C.
        rows, columns: of the map of bricks, each of ``BRICK`` places of all planes.
    """

    name: str
    input: int
    made: tuple[str, ...]
    count: int
    rows: int
    columns: int


def planes_of(op: Op, source: Value, most: int) -> tuple[int, int] | None:
    """(planes, places of each), if ``op`` turns ``source``, one picture of at most so many planes, to NHWC and bricks fit."""
    if op.name != "TRANSPOSE" or source.dtype not in _ONE:
        return None
    read = op.operands[0].shape
    moved = [(axis, read[axis]) for axis in op.attrs["perms"] if read[axis] > 1]
    axes = [axis for axis, _ in moved]
    if len(axes) < 2 or axes[-1] != min(axes) or axes[:-1] != sorted(axes[:-1]):
        return None
    count = moved[-1][1]
    places = math.prod(read) // count
    return (count, places) if count <= most and places % BRICK == 0 else None


def input_of(r: Rewriter, value: Value) -> Value:
    """What ``value`` is under another shape: an input of the graph, if nothing else is done to it."""
    while (op := r.producer(value, "RESHAPE")) is not None:
        value = op.operands[0]
    return value


def _turned(r: Rewriter, most: int) -> list[tuple[Op, Value, int, int]]:
    """The TRANSPOSEs of inputs that convolutions may read in planes, each with its input, planes, and places of a plane."""
    found = []
    for op in r.named("TRANSPOSE"):
        source = input_of(r, op.operands[0])
        size = planes_of(op, source, most) if source in r.graph.inputs else None
        if size is not None:
            found.append((op, source, *size))
    return found


def copy_selected_inputs(graph: Graph, most: int) -> None:
    """Make each SELECT read a copy of the inputs that convolutions may read in planes, which is another shape.

    Vela's bug: ``vela.select-of-reshaped``.
    """
    r = Rewriter(graph)
    turned = {source for _, source, *_ in _turned(r, most)}
    for op in r.named("SELECT"):
        for index, value in enumerate(op.operands):
            if input_of(r, value) in turned:
                r.insert_before(op, index, copied)
    r.finish()


def turned_inputs(graph: Graph, most: int) -> bool:
    """Is an input of the graph turned that convolutions may read in planes?"""
    return any(op.name == "TRANSPOSE" for op in graph.ops) and bool(_turned(Rewriter(graph), most))


def bytes_beside_pixels(graph: Graph, most: int) -> int:
    """Of the inputs that convolutions may read in planes: most bytes of one with what the first windows make of it."""
    r = Rewriter(graph)
    found = _turned(r, most)
    return max((math.prod(op.result.shape) * _BYTES[source.dtype] + _made_of(r, op) for op, source, *_ in found), default=0)


def _made_of(r: Rewriter, op: Op) -> int:
    """Bytes of what is computed from a value first; none where it only gets another shape."""
    wide = 0
    for reader in r.readers(op.result):
        if reader.name in ("RESHAPE", "SLICE", "PAD", "TRANSPOSE"):
            wide = max(wide, _made_of(r, reader))
        else:
            wide = max(wide, math.prod(reader.result.shape) * _BYTES.get(op.result.dtype, 1))
    return wide


def without_turned_inputs(graph: Graph, most: int) -> tuple[Graph, tuple[Planes, ...]]:
    """A copy of the graph for Vela in which convolutions read inputs that are planes; ``graph`` itself where there is none.

    Args:
        most: planes that such an input may have.
    """
    r = Rewriter(graph.copy())
    found = tuple(_by_convolution(r, *turned) for turned in _turned(r, most))
    if not found:
        return graph, ()
    r.drop_dead()
    return r.finish(), found


def _by_convolution(r: Rewriter, op: Op, source: Value, count: int, places: int) -> Planes:
    rows, columns = _as_map(op.result.shape, places // BRICK)
    at, shape, name, before = r.before(op), op.result.shape, op.result.name, set(r)
    made = _in_pixels(at, at.reshape(source, 1, rows, columns, BRICK * count), count)
    r.replace(op, at.reshape(made, *shape))
    return Planes(name, r.graph.inputs.index(source), tuple(op.result.name for op in r if op not in before), count, rows, columns)


def _in_pixels(at: Place, bricks: Value, count: int) -> Value:
    """Channels, sixteen places of the first plane, sixteen of the next and so on, in the order of places."""
    depth = BRICK * count
    picking = np.zeros((depth, 1, 1, depth), np.int8)
    place, plane = np.divmod(np.arange(depth), count)
    picking[np.arange(depth), 0, 0, plane * BRICK + place] = 1
    bias = "INT48" if bricks.dtype == "INT16" else "INT32"
    wide = at.emit(
        "CONV2D", bricks, at.constant(picking, "INT8"), at.constant(np.zeros(1, DTYPES[bias]), bias), **_WINDOW
    )  # fmt: skip
    return at.emit("RESCALE", wide, dtype=bricks.dtype, **_ONE[bricks.dtype], **_AS_IS)


def _as_map(shape: tuple[int, ...], bricks: int) -> tuple[int, int]:
    """Rows and columns for so many bricks: whole rows of the picture where they are whole bricks, else what divides evenly."""
    height = math.prod(shape[:-2])
    rows = math.gcd(height, bricks)
    while bricks // rows > LONGEST:
        rows *= next(n for n in range(2, bricks // rows + 1) if bricks // rows % n == 0)
    return rows, bricks // rows

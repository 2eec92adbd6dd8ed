"""Convert NCHW inputs to NHWC with a convolution that reads the planes in brick format.

TOSA cannot express memory layouts, so ``ethorch.vela.planes`` sets the strides in the commands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ethorch.lower.rewrite.insert_copies import LONGEST, copy_value
from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.targets.tuning import BRICK
from ethorch.tosa.ir import DTYPES, Graph, Op, Value
from ethorch.tosa.opset import BY_ONE, KERNEL_1X1

#: Attributes of a RESCALE by 1, for each input dtype.
_ONE: Mapping[str, Mapping[str, Any]] = {
    "INT8": BY_ONE,
    "INT16": {**BY_ONE, "multiplier": (1 << 14,), "shift": (14,), "dtype": "INT16"},
}
_BYTES = {"INT8": 1, "INT16": 2}


@dataclass(frozen=True)
class Planes:
    """An input that a convolution reads in brick format.

    Attributes:
        name: Name of the result of the replaced TRANSPOSE.
        input: Index of the graph input.
        results: Names of the results of the new operators.
        count: Number C of planes.
        rows, columns: Number of rows and columns of bricks.
    """

    name: str
    input: int
    results: tuple[str, ...]
    count: int
    rows: int
    columns: int


def planes_of(op: Op, source: Value, most: int) -> tuple[int, int] | None:
    """Return (number of planes, elements per plane) if ``op`` converts one image of up to ``most`` planes to NHWC, or else None."""
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
    """Return the value from which RESHAPEs compute ``value``, or ``value`` itself."""
    while (op := r.producer(value, "RESHAPE")) is not None:
        value = op.operands[0]
    return value


def _find_transposes(r: Rewriter, most: int) -> list[tuple[Op, Value, int, int]]:
    transposes = []
    for op in r.select("TRANSPOSE"):
        source = input_of(r, op.operands[0])
        size = planes_of(op, source, most) if source in r.graph.inputs else None
        if size is not None:
            transposes.append((op, source, *size))
    return transposes


def copy_selected_inputs(graph: Graph, most: int) -> None:
    """Copy inputs that a SELECT reads and that a convolution can convert to NHWC. See ``vela.select-of-reshaped``."""
    r = Rewriter(graph)
    sources = {source for _, source, *_ in _find_transposes(r, most)}
    for op in r.select("SELECT"):
        for index, value in enumerate(op.operands):
            if input_of(r, value) in sources:
                r.insert_before(op, index, copy_value)
    r.finish()


def smallest_plane(graph: Graph, most: int) -> int:
    """Return the fewest elements per plane of inputs that a convolution can convert to NHWC, or 0."""
    if not any(op.name == "TRANSPOSE" for op in graph.ops):
        return 0
    return min((places for _, _, _, places in _find_transposes(Rewriter(graph), most)), default=0)


def bytes_beside_pixels(graph: Graph, most: int) -> int:
    """Return the maximum, over the converted inputs, of an input's bytes plus the bytes of its readers' largest result."""
    r = Rewriter(graph)
    planes = _find_transposes(r, most)
    return max((math.prod(op.result.shape) * _BYTES[source.dtype] + _first_bytes(r, op) for op, source, *_ in planes), default=0)


def _first_bytes(r: Rewriter, op: Op) -> int:
    wide = 0
    for reader in r.readers(op.result):
        if reader.name in ("RESHAPE", "SLICE", "PAD", "TRANSPOSE"):
            wide = max(wide, _first_bytes(r, reader))
        else:
            wide = max(wide, math.prod(reader.result.shape) * _BYTES.get(op.result.dtype, 1))
    return wide


def read_planes(graph: Graph, most: int) -> tuple[Graph, tuple[Planes, ...]]:
    """Convert NCHW inputs of up to ``most`` planes with convolutions. Return the new graph and the converted inputs.

    Return ``(graph, ())`` if no input can be converted. In brick format, C planes form a feature map with 16C channels, because
    16 adjacent columns of a plane act as channels. A 1x1 convolution permutes these channels to NHWC.
    """
    r = Rewriter(graph.copy())
    planes = tuple(_by_convolution(r, *transpose) for transpose in _find_transposes(r, most))
    if not planes:
        return graph, ()
    r.drop_dead()
    return r.finish(), planes


def _by_convolution(r: Rewriter, op: Op, source: Value, count: int, places: int) -> Planes:
    rows, columns = fold_bricks(op.result.shape, places // BRICK)
    at, shape, name, before = r.before(op), op.result.shape, op.result.name, set(r)
    pixels = _in_pixels(at, at.reshape(source, 1, rows, columns, BRICK * count), count)
    r.replace(op, at.reshape(pixels, *shape))
    return Planes(name, r.graph.inputs.index(source), tuple(op.result.name for op in r if op not in before), count, rows, columns)


def _in_pixels(at: Place, bricks: Value, count: int) -> Value:
    depth = BRICK * count
    picking = np.zeros((depth, 1, 1, depth), np.int8)
    place, plane = np.divmod(np.arange(depth), count)
    picking[np.arange(depth), 0, 0, plane * BRICK + place] = 1
    bias = "INT48" if bricks.dtype == "INT16" else "INT32"
    wide = at.emit("CONV2D", bricks, at.constant(picking, "INT8"), at.constant(np.zeros(1, DTYPES[bias]), bias), **KERNEL_1X1)
    return at.emit("RESCALE", wide, **_ONE[bricks.dtype])


def fold_bricks(shape: Sequence[int], bricks: int) -> tuple[int, int]:
    """Return the rows and columns of a map of ``bricks`` elements."""
    height = math.prod(shape[:-2])
    rows = math.gcd(height, bricks)
    while bricks // rows > LONGEST:
        rows *= next(n for n in range(2, bricks // rows + 1) if bricks // rows % n == 0)
    return rows, bricks // rows

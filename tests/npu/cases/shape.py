"""What moves data: transpose, concat, pad, reverse, slice, tile."""

from __future__ import annotations

from tests.helpers.npu_graphs import Graph
from tests.npu.cases.registry import case


@case("transpose_nchw", (0, 3, 1, 2), "INT8")
@case("transpose_nhwc", (0, 2, 3, 1), "INT8")
@case("transpose_0213", (0, 2, 1, 3), "INT8")
@case("transpose_0132", (0, 1, 3, 2), "INT8")
@case("transpose_0321", (0, 3, 2, 1), "INT8")
@case("transpose_int16", (0, 3, 1, 2), "INT16")
@case("transpose_int32", (0, 3, 2, 1), "INT32")
@case("transpose_batch", (0, 3, 1, 2), "INT8", 2)
def _transpose(g: Graph, perms, dtype, batch=1):
    x = g.input(batch, 6, 5, 20, dtype=dtype)
    g.output(g.op("TRANSPOSE", [x], [x.shape[p] for p in perms], dtype, perms=list(perms)))


@case("reverse_h", 1, "INT8")
@case("reverse_w", 2, "INT8")
@case("reverse_c", 3, "INT8")
@case("reverse_w_int32", 2, "INT32")
def _reverse(g: Graph, axis, dtype):
    x = g.input(1, 6, 5, 20, dtype=dtype)
    g.output(g.op("REVERSE", [x], x.shape, dtype, axis=axis))


@case("slice", "INT8")
@case("slice_int32", "INT32")
def _slice(g: Graph, dtype):
    x = g.input(1, 6, 5, 20, dtype=dtype)
    g.output(g.op("SLICE", [x, g.const([0, 1, 2, 3], "SHAPE"), g.const([1, 4, 2, 11], "SHAPE")], (1, 4, 2, 11), dtype))


@case("pad", "INT8")
@case("pad_int16", "INT16")
def _pad(g: Graph, dtype):
    x = g.input(1, 6, 5, 20, dtype=dtype)
    widths = [0, 0, 1, 2, 3, 0, 0, 5]
    g.output(g.op("PAD", [x, g.const(widths, "SHAPE"), g.zero(dtype, 33)], (1, 9, 8, 25), dtype))


@case("tile")
def _tile(g: Graph):
    x = g.input(1, 3, 2, 10)
    g.output(g.op("TILE", [x, g.const([1, 2, 1, 3], "SHAPE")], (1, 6, 2, 30), "INT8"))


@case("concat_c", 3, "INT8")
@case("concat_h", 1, "INT8")
@case("concat_int32", 3, "INT32")
def _concat(g: Graph, axis, dtype):
    x, y = g.input(1, 6, 5, 20, dtype=dtype), g.input(1, 6, 5, 20, dtype=dtype)
    shape = list(x.shape)
    shape[axis] *= 2
    g.output(g.op("CONCAT", [x, y], shape, dtype, axis=axis))


@case("reshape_conv")
def _reshape(g: Graph):
    x = g.input(1, 30, 1, 20)
    y = g.op("RESHAPE", [x, g.const([1, 6, 5, 20], "SHAPE")], (1, 6, 5, 20), "INT8")
    g.output(g.conv(y, 16))


@case("identity")
def _identity(g: Graph):
    x = g.input(1, 6, 5, 20)
    g.output(g.op("IDENTITY", [x], x.shape, "INT8"))

"""Resize, gather, scatter, matmul."""

from __future__ import annotations

from tests.helpers.npu_graphs import Graph, ts
from tests.npu.cases.registry import case


@case("resize_nearest_x2", "NEAREST", "INT8", 2)
@case("resize_bilinear_x2", "BILINEAR", "INT8", 2)
@case("resize_bilinear_x4", "BILINEAR", "INT8", 4)
@case("resize_bilinear_x2_int16", "BILINEAR", "INT16", 2)
@case("resize_nearest_x2_half", "NEAREST", "INT8", 2, True)
@case("resize_bilinear_x3_half", "BILINEAR", "INT8", 3, True)
def _resize(g: Graph, mode, dtype, factor, half=False):
    h, w = 5, 6
    x = g.input(1, h, w, 20, dtype=dtype)
    n, d = 2 * factor, 2
    offset = -(factor - 1) if half else 0
    border = factor - 1 if half else -n + d
    if half:
        border = factor - 1
    sizes = [((s - 1) * n - offset + border) // d + 1 for s in (h, w)]
    acc = dtype if mode == "NEAREST" else {"INT8": "INT32", "INT16": "INT48"}[dtype]
    y = g.op(
        "RESIZE",
        [x, g.const([n, d, n, d], "SHAPE"), g.const([offset] * 2, "SHAPE"), g.const([border] * 2, "SHAPE")],
        (1, *sizes, 20),
        acc,
        mode=getattr(ts.ResizeMode, mode),
    )
    g.output(y if acc == dtype else g.rescale(y, dtype, 1 / (n * n)))


@case("gather_int8", "INT8", 1)
@case("gather_int32", "INT32", 1)
@case("gather_batch", "INT8", 2)
def _gather(g: Graph, dtype, batch):
    x = g.input(batch, 12, 20, dtype=dtype)
    g.output(g.op("GATHER", [x, g.input(batch, 7, dtype="INT32", low=0, high=11)], (batch, 7, 20), dtype))


@case("gather_conv")
def _gather_conv(g: Graph):
    y = g.op("GATHER", [g.input(1, 12, 20), g.input(1, 6, dtype="INT32", low=0, high=11)], (1, 6, 20), "INT8")
    y = g.op("RESHAPE", [y, g.const([1, 2, 3, 20], "SHAPE")], (1, 2, 3, 20), "INT8")
    g.output(g.conv(y, 16, kernel=(1, 1)))


@case("scatter")
def _scatter(g: Graph):
    x, index, y = g.input(1, 12, 20), g.const([[3, 1, 7, 11, 0]], "INT32"), g.input(1, 5, 20)
    g.output(g.op("SCATTER", [x, index, y], (1, 12, 20), "INT8"))


@case("matmul", "INT8", 1, 9, 40, 11)
@case("matmul_batch", "INT8", 3, 9, 40, 11)
@case("matmul_deep", "INT8", 1, 4, 5000, 6)
@case("matmul_70000", "INT8", 1, 2, 70000, 3)
@case("matmul_int16", "INT16", 1, 9, 40, 11)
def _matmul(g: Graph, dtype, n, h, c, w):
    zp = 3 if dtype == "INT8" else 0
    a, b = g.input(n, h, c, dtype=dtype), g.input(n, c, w, dtype=dtype)
    acc = "INT32" if dtype == "INT8" else "INT48"
    y = g.op("MATMUL", [a, b, g.zero(dtype, zp), g.zero(dtype, -zp)], (n, h, w), acc)
    g.output(g.spread(y, c, dtype, dtype, per_channel=False, sigma=74 if dtype == "INT8" else 18900))

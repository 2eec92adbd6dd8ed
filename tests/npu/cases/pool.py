"""Pools and reductions."""

from __future__ import annotations

from tests.helpers.npu_graphs import Graph, Tensor, ts
from tests.npu.cases.registry import case


@case("max_pool_2x2", (1, 8, 8, 19), (2, 2), (2, 2))
@case("max_pool_3x3_padded", (1, 9, 9, 16), (3, 3), (2, 2), (1, 1, 1, 1))
@case("max_pool_int16", (1, 9, 9, 16), (3, 3), (2, 2), (1, 1, 1, 1), dtype="INT16")
@case("max_pool_big", (1, 30, 20, 4), (20, 15), (1, 1))
def _max_pool(g: Graph, shape, kernel, stride, pad=(0, 0, 0, 0), dtype="INT8"):
    x = g.input(*shape, dtype=dtype)
    attributes = {"nan_mode": ts.NanPropagationMode.PROPAGATE}
    g.output(g.op("MAX_POOL2D", [x], _pooled(x, kernel, stride, pad), dtype, **window(kernel, stride, pad), **attributes))


@case("average_pool_2x2", (1, 8, 8, 19), (2, 2), (2, 2))
@case("average_pool_3x3_padded", (1, 9, 9, 16), (3, 3), (2, 2), (1, 1, 1, 1), zp=5)
@case("average_pool_global", (1, 7, 7, 40), (7, 7), (1, 1), zp=-128)
@case("average_pool_3x2", (1, 9, 9, 16), (3, 2), (1, 1), zp=9)
@case("average_pool_int16", (1, 9, 9, 16), (3, 3), (2, 2), (1, 1, 1, 1), dtype="INT16")
@case("average_pool_big", (1, 30, 20, 4), (20, 15), (1, 1))
def _average_pool(g: Graph, shape, kernel, stride, pad=(0, 0, 0, 0), dtype="INT8", zp=0):
    x = g.input(*shape, dtype=dtype)
    g.output(
        g.op(
            "AVG_POOL2D",
            [x, g.zero(dtype, zp), g.zero(dtype, zp)],
            _pooled(x, kernel, stride, pad),
            dtype,
            **window(kernel, stride, pad),
            acc_type=ts.DType.INT32,
        )
    )


def window(kernel, stride, pad):
    return {"kernel": list(kernel), "stride": list(stride), "pad": list(pad)}


def _pooled(x: Tensor, kernel, stride, pad):
    n, h, w, c = x.shape
    oh = (h + pad[0] + pad[1] - kernel[0]) // stride[0] + 1
    return n, oh, (w + pad[2] + pad[3] - kernel[1]) // stride[1] + 1, c


@case("reduce_sum_h", 1)
@case("reduce_sum_w", 2)
@case("reduce_sum_c", 3)
def _reduce_sum(g: Graph, axis):
    x = g.rescale(g.input(1, 6, 5, 20), "INT32", zp_in=7)
    shape = list(x.shape)
    shape[axis] = 1
    g.output(g.rescale(g.op("REDUCE_SUM", [x], shape, "INT32", axis=axis), "INT8", 0.1))


@case("reduce_max_h", "REDUCE_MAX", 1, "INT8")
@case("reduce_max_c", "REDUCE_MAX", 3, "INT8")
@case("reduce_max_c_int16", "REDUCE_MAX", 3, "INT16")
@case("reduce_min_w", "REDUCE_MIN", 2, "INT8")
@case("reduce_min_c", "REDUCE_MIN", 3, "INT8")
@case("reduce_min_int16", "REDUCE_MIN", 1, "INT16")
def _reduce_extreme(g: Graph, kind, axis, dtype):
    x = g.input(1, 6, 5, 20, dtype=dtype)
    shape = list(x.shape)
    shape[axis] = 1
    g.output(g.op(kind, [x], shape, dtype, axis=axis, nan_mode=ts.NanPropagationMode.PROPAGATE))


@case("argmax_c", 3)
@case("argmax_w", 2)
@case("argmax_h", 1)
def _argmax(g: Graph, axis):
    x = g.input(1, 6, 5, 20)
    shape = [s for a, s in enumerate(x.shape) if a != axis]
    g.output(g.op("ARGMAX", [x], shape, "INT32", axis=axis, nan_mode=ts.NanPropagationMode.PROPAGATE))

"""The operator graphs compared on every target. A case draws on the ``Graph`` it gets and marks its outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.npu.graphs import Graph, Tensor, ts

CASES: dict[str, Callable[[Graph], None]] = {}


def case(name: str, *args, **kwargs):
    """Register a function as a case; stacked, one function gives several cases with different arguments."""

    def register(build):
        assert name not in CASES, name
        CASES[name] = lambda g: build(g, *args, **kwargs)
        return build

    return register


# Convolutions ---------------------------------------------------------------------------------------------------------


@case("conv_1x1", (1, 9, 7, 40), 24, kernel=(1, 1), zp=-5)
@case("conv_1x1_stride2", (1, 9, 7, 19), 24, kernel=(1, 1), stride=(2, 2))
@case("conv_3x3_same", (1, 13, 11, 8), 24, pad=(1, 1, 1, 1), zp=3, zp_out=-7)
@case("conv_3x3_stride2", (1, 16, 18, 3), 16, stride=(2, 2), pad=(0, 1, 0, 1), zp=-128)
@case("conv_3x3_per_tensor", (1, 8, 8, 16), 16, pad=(1, 1, 1, 1), per_channel=False)
@case("conv_5x5_dilated", (1, 17, 17, 6), 10, kernel=(5, 5), dilation=(2, 2), pad=(4, 4, 4, 4))
@case("conv_9x9", (1, 14, 13, 5), 9, kernel=(9, 9), pad=(4, 4, 4, 4), zp=11)
@case("conv_9x10", (1, 20, 20, 5), 9, kernel=(9, 10))
@case("conv_1x30", (1, 2, 40, 4), 6, kernel=(1, 30), stride=(1, 1))
@case("conv_1d_wide", (1, 1, 900, 64), 16, kernel=(1, 48), pad=(0, 0, 20, 27), zp=-3)
@case("conv_stride3", (1, 15, 18, 12), 20, stride=(3, 3))
@case("conv_stride4", (1, 16, 20, 12), 20, kernel=(4, 4), stride=(4, 4))
@case("conv_stride5", (1, 20, 20, 12), 20, kernel=(5, 5), stride=(5, 5))
@case("conv_stride7", (1, 21, 14, 5), 9, kernel=(7, 7), stride=(7, 7), zp=9)
@case("conv_stride21", (1, 13, 12, 12), 20, stride=(2, 1))
@case("conv_deep", (1, 4, 4, 300), 70, kernel=(3, 3), pad=(1, 1, 1, 1))
@case("conv_wide_output", (1, 3, 3, 20), 300, kernel=(1, 1))
@case("conv_batch2", (2, 6, 6, 8), 12)
@case("conv_to_int16", (1, 6, 6, 8), 12, rescale="INT16")
@case("conv_to_int32", (1, 6, 6, 8), 12, rescale="INT32")
@case("fully_connected", (1, 1, 1, 64), 10, kernel=(1, 1))
@case("fully_connected_batch", (5, 1, 1, 64), 10, kernel=(1, 1))
def _conv(g: Graph, shape, out, **kw):
    g.output(g.conv(g.input(*shape), out, **kw))


@case("conv16_3x3", (1, 9, 9, 8), 24, pad=(1, 1, 1, 1))
@case("conv16_1x1_deep", (1, 5, 5, 100), 24, kernel=(1, 1))
@case("conv16_to_int8", (1, 9, 9, 8), 24, rescale="INT8")
@case("conv16_to_int32", (1, 9, 9, 8), 24, rescale="INT32")
@case("conv16_9x9", (1, 12, 12, 5), 9, kernel=(9, 9))
def _conv16(g: Graph, shape, out, rescale="INT16", **kw):
    g.output(g.conv(g.input(*shape, dtype="INT16"), out, rescale=rescale, **kw))


@case("depthwise_3x3", (1, 12, 11, 19), 1, pad=(1, 1, 1, 1), zp=-7)
@case("depthwise_3x3_stride2", (1, 12, 12, 40), 1, stride=(2, 2), pad=(0, 1, 0, 1))
@case("depthwise_5x5_dilated", (1, 20, 20, 16), 1, kernel=(5, 5), dilation=(2, 2))
@case("depthwise_7x9", (1, 14, 14, 8), 1, kernel=(7, 9), pad=(3, 3, 4, 4))
@case("depthwise_multiplier", (1, 8, 8, 5), 3)
@case("depthwise_one_channel", (1, 8, 8, 1), 12)
@case("depthwise_stride4", (1, 16, 20, 9), 1, kernel=(4, 4), stride=(4, 4))
@case("depthwise_stride5", (1, 20, 20, 9), 1, kernel=(5, 5), stride=(5, 5), zp=4)
@case("depthwise_to_int32", (1, 8, 8, 9), 1, rescale="INT32")
def _depthwise(g: Graph, shape, multiplier, **kw):
    g.output(g.conv(g.input(*shape), multiplier, depthwise=True, **kw))


@case("depthwise16_3x3", (1, 12, 11, 19), 1, pad=(1, 1, 1, 1))
@case("depthwise16_stride2", (1, 13, 15, 33), 1, stride=(2, 2))
def _depthwise16(g: Graph, shape, multiplier, **kw):
    g.output(g.conv(g.input(*shape, dtype="INT16"), multiplier, depthwise=True, rescale="INT16", **kw))


@case("conv_sparse_weights")
def _sparse(g: Graph):
    w = g.rng.integers(-127, 128, (24, 3, 3, 32)) * (g.rng.random((24, 3, 3, 32)) < 0.1)
    g.output(g.conv(g.input(1, 8, 8, 32), 24, weights=w))


@case("conv_few_weights", 3, 32)
@case("conv_14_weights", 14, 32)
@case("conv_many_weights", 255, 64)
def _palette(g: Graph, count, depth):
    values = np.linspace(-127, 127, count).round()
    g.output(g.conv(g.input(1, 8, 8, depth), 48, weights=g.rng.choice(values, (48, 3, 3, depth)), zp=1))


@case("conv_2_4_sparse")
def _two_of_four(g: Graph):
    w = g.rng.integers(-127, 128, (32, 3, 3, 16, 4))
    w[..., :2] = 0
    g.output(g.conv(g.input(1, 8, 8, 64), 32, weights=g.rng.permuted(w, axis=-1).reshape(32, 3, 3, 64)))


@case("transpose_conv_stride1", 1, 3)
@case("transpose_conv_stride2", 2, 3)
@case("transpose_conv_stride2_4x4", 2, 4)
def _transpose_conv(g: Graph, stride, k, dtype="INT8"):
    x = g.input(1, 6, 7, 10, dtype=dtype)
    acc = "INT32" if dtype == "INT8" else "INT48"
    weight = g.random(12, k, k, 10)
    bias = g.random(12, dtype=acc, low=-3000, high=3000)
    size = [(n - 1) * stride + k for n in (6, 7)]
    y = g.op(
        "TRANSPOSE_CONV2D",
        [x, weight, bias, g.zero(dtype, 4), g.zero("INT8")],
        (1, *size, 12),
        acc,
        out_pad=[0, 0, 0, 0],
        stride=[stride, stride],
        local_bound=False,
        acc_type=getattr(ts.DType, acc),
    )
    g.output(g.spread(y, k * k * 10 // stride**2, dtype, dtype, sigma=74))


@case("conv3d")
def _conv3d(g: Graph):
    x = g.input(1, 5, 6, 6, 4)
    weight = g.random(8, 3, 3, 3, 4)
    bias = g.random(8, dtype="INT32", low=-3000, high=3000)
    y = g.op(
        "CONV3D",
        [x, weight, bias, g.zero("INT8", 2), g.zero("INT8")],
        (1, 3, 4, 4, 8),
        "INT32",
        pad=[0] * 6,
        stride=[1] * 3,
        dilation=[1] * 3,
        local_bound=False,
        acc_type=ts.DType.INT32,
    )
    g.output(g.spread(y, 108, "INT8", "INT8", sigma=74))


@case("conv_dynamic_weights", True)
@case("conv_dynamic_bias", False)
def _dynamic(g: Graph, dynamic_weights):
    """Weights or bias that are inputs of the graph."""
    x = g.input(1, 6, 5, 20)
    weight = g.input(12, 3, 3, 20) if dynamic_weights else g.random(12, 3, 3, 20)
    bias = g.input(12, dtype="INT32", low=-3000, high=3000)
    y = g.op(
        "CONV2D",
        [x, weight, bias, g.zero("INT8", 2), g.zero("INT8", 3 if dynamic_weights else 0)],
        (1, 4, 3, 12),
        "INT32",
        pad=[0] * 4,
        stride=[1, 1],
        dilation=[1, 1],
        local_bound=False,
        acc_type=ts.DType.INT32,
    )
    # One scale: Vela 5.2 drops all but the first of a per-channel RESCALE behind weights that are not constant.
    g.output(g.spread(y, 180, "INT8", "INT8", sigma=74, per_channel=False))


@case("conv16_two_rescales")
def _int48(g: Graph):
    """An int48 tensor with two users, which U85 stores in 64 bits."""
    y = g.conv(g.input(1, 6, 6, 8, dtype="INT16"), 12, rescale=None)
    g.output(g.spread(y, 72, "INT16", "INT16"), g.spread(y, 72, "INT16", "INT8"))


# Pools and reductions -------------------------------------------------------------------------------------------------


@case("max_pool_2x2", (1, 8, 8, 19), (2, 2), (2, 2))
@case("max_pool_3x3_padded", (1, 9, 9, 16), (3, 3), (2, 2), (1, 1, 1, 1))
@case("max_pool_int16", (1, 9, 9, 16), (3, 3), (2, 2), (1, 1, 1, 1), dtype="INT16")
@case("max_pool_big", (1, 30, 20, 4), (20, 15), (1, 1))
def _max_pool(g: Graph, shape, kernel, stride, pad=(0, 0, 0, 0), dtype="INT8"):
    x = g.input(*shape, dtype=dtype)
    attributes = {"nan_mode": ts.NanPropagationMode.PROPAGATE}
    g.output(g.op("MAX_POOL2D", [x], _pooled(x, kernel, stride, pad), dtype, **_window(kernel, stride, pad), **attributes))


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
            **_window(kernel, stride, pad),
            acc_type=ts.DType.INT32,
        )
    )


def _window(kernel, stride, pad):
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


# Elementwise ----------------------------------------------------------------------------------------------------------


def _int32(g: Graph, x: Tensor, scale=1.0, zp=0, **kw) -> Tensor:
    return g.rescale(x, "INT32", scale, zp_in=zp, **kw)


def _broadcast(a: Tensor, b: Tensor):
    return np.broadcast_shapes(a.shape, b.shape)


@case("add_int8", "ADD", (1, 6, 5, 20), (1, 6, 5, 20))
@case("sub_int8", "SUB", (1, 6, 5, 20), (1, 6, 5, 20))
@case("add_large", "ADD", (1, 48, 40, 32), (1, 48, 40, 32))
@case("add_broadcast_hw", "ADD", (1, 6, 5, 20), (1, 1, 1, 20))
@case("add_broadcast_c", "ADD", (1, 6, 5, 20), (1, 6, 5, 1))
@case("sub_broadcast_first", "SUB", (1, 1, 5, 1), (1, 6, 5, 20))
@case("add_broadcast_both", "ADD", (1, 6, 1, 20), (1, 1, 5, 20))
@case("add_int8_double_round", "ADD", (1, 6, 5, 20), (1, 6, 5, 20), rounding="SINGLE_ROUND", scales=(0.31, 1.0, 0.4))
@case("add_int8_large_scale", "ADD", (1, 6, 5, 20), (1, 6, 5, 20), scales=(1.0, 0.013, 0.9))
# The larger operand at exactly 2**19 and the sum back from 2**20 is what Vela folds into one ADD with OPA_32 or OPB_32.
@case("add_opb", "ADD", (1, 6, 5, 20), (1, 6, 5, 20), scales=(2.0**19, 0.37 * 2**19, 1.3 / 2**20))
@case("add_opa", "ADD", (1, 6, 5, 20), (1, 6, 5, 20), scales=(0.61 * 2**19, 2.0**19, 1.1 / 2**20))
@case("sub_opb", "SUB", (1, 6, 5, 20), (1, 1, 5, 1), scales=(2.0**19, 0.37 * 2**19, 1.3 / 2**20))
@case("sub_opa", "SUB", (1, 1, 5, 1), (1, 6, 5, 20), scales=(0.61 * 2**19, 2.0**19, 1.1 / 2**20))
@case("add_opa_large", "ADD", (1, 40, 48, 32), (1, 40, 48, 32), scales=(0.61 * 2**19, 2.0**19, 1.1 / 2**20))
@case("add_int16_opa", "ADD", (1, 6, 5, 20), (1, 6, 5, 20), dtype="INT16", scales=(0.7 * 2**13, 2.0**13, 1.2 / 2**15))
@case("add_int16", "ADD", (1, 6, 5, 20), (1, 6, 5, 20), dtype="INT16", scales=(2.0**10, 0.7 * 2**10, 0.6 / 2**10))
@case("sub_int16", "SUB", (1, 6, 5, 20), (1, 6, 5, 20), dtype="INT16", scales=(2.0**10, 0.7 * 2**10, 0.6 / 2**10))
def _sum(g: Graph, kind, a, b, dtype="INT8", scales=(2.0**18, 0.37 * 2**18, 0.7 / 2**18), rounding="SINGLE_ROUND"):
    zp = 3 if dtype == "INT8" else 0
    x = _int32(g, g.input(*a, dtype=dtype), scales[0], zp, rounding=rounding)
    y = _int32(g, g.input(*b, dtype=dtype), scales[1], -zp, rounding=rounding)
    out = g.op(kind, [x, y], _broadcast(x, y), "INT32")
    g.output(g.rescale(out, dtype, scales[2], zp_out=2 * zp, rounding=rounding))


@case("add_same_scale")
def _add_same(g: Graph):
    x, y = _int32(g, g.input(1, 6, 5, 20), zp=4), _int32(g, g.input(1, 6, 5, 20), zp=-4)
    g.output(g.rescale(g.op("ADD", [x, y], x.shape, "INT32"), "INT8", 0.5))


@case("add_constant")
def _add_constant(g: Graph):
    x = _int32(g, g.input(1, 6, 5, 20), 2.0**18)
    y = g.const(np.full((1, 1, 1, 1), 777 << 12), "INT32")
    g.output(g.rescale(g.op("ADD", [x, y], x.shape, "INT32"), "INT8", 0.9 / 2**18))


@case("add_int32", "ADD")
@case("sub_int32", "SUB")
@case("maximum_int32", "MAXIMUM", nan_mode=ts.NanPropagationMode.PROPAGATE)
@case("minimum_int32", "MINIMUM", nan_mode=ts.NanPropagationMode.PROPAGATE)
def _int32_pair(g: Graph, kind, **attributes):
    x = g.input(1, 6, 5, 20, dtype="INT32", low=-(2**30), high=2**30 - 1)
    y = g.input(1, 6, 5, 20, dtype="INT32", low=-(2**30), high=2**30 - 1)
    g.output(g.op(kind, [x, y], x.shape, "INT32", **attributes))


@case("maximum_int8", "MAXIMUM", "INT8", (1, 6, 5, 20))
@case("minimum_int8", "MINIMUM", "INT8", (1, 1, 1, 20))
@case("maximum_int16", "MAXIMUM", "INT16", (1, 6, 5, 20))
def _extreme(g: Graph, kind, dtype, second):
    x, y = _int32(g, g.input(1, 6, 5, 20, dtype=dtype)), _int32(g, g.input(*second, dtype=dtype))
    z = g.op(kind, [x, y], x.shape, "INT32", nan_mode=ts.NanPropagationMode.PROPAGATE)
    g.output(g.rescale(z, dtype))


@case("mul_int8", (1, 6, 5, 20), (1, 6, 5, 20))
@case("mul_broadcast", (1, 6, 5, 20), (1, 1, 1, 20))
@case("mul_broadcast_first", (1, 1, 1, 1), (1, 6, 5, 20))
@case("mul_large", (1, 48, 40, 32), (1, 48, 40, 32))
@case("mul_broadcast_h", (1, 1, 5, 20), (1, 6, 5, 20))
@case("mul_broadcast_hw_c", (1, 1, 1, 20), (1, 6, 5, 1))
@case("mul_broadcast_wc", (1, 6, 1, 1), (1, 6, 5, 20))
@case("mul_broadcast_w", (1, 6, 5, 20), (1, 6, 1, 20))
@case("mul_int16", (1, 6, 5, 20), (1, 6, 5, 20), dtype="INT16", scale=1 / 40000)
@case("mul_int16_to_int32", (1, 6, 5, 20), (1, 6, 5, 20), dtype="INT16", out="INT32", scale=0.4, low=-32767)
def _mul(g: Graph, a, b, dtype="INT8", out=None, scale=1 / 90, low=None):
    zp = 5 if dtype == "INT8" else 0
    x, y = (_int32(g, g.input(*s, dtype=dtype, low=low), zp=zp) for s in (a, b))
    z = g.op("MUL", [x, y, g.const([0], "INT8")], _broadcast(x, y), "INT32")
    g.output(g.rescale(z, out or dtype, scale))


@case("mul_int32_shift", 25)
@case("mul_int32", 0)
def _mul32(g: Graph, shift):
    bound = 2**31 - 1 if shift else 40000
    x = g.input(1, 6, 5, 20, dtype="INT32", low=-min(bound, 2**28), high=min(bound, 2**28))
    y = g.input(1, 6, 5, 20, dtype="INT32", low=-min(bound, 2**27), high=min(bound, 2**27))
    g.output(g.op("MUL", [x, y, g.const([shift], "INT8")], x.shape, "INT32"))


@case("abs_int32", "ABS")
@case("clz", "CLZ")
@case("bitwise_not", "BITWISE_NOT")
def _unary32(g: Graph, kind):
    x = g.input(1, 6, 5, 20, dtype="INT32", low=-(2**31) + 1)
    g.output(g.op(kind, [x], x.shape, "INT32"))


@case("abs_int8")
def _abs(g: Graph):
    x = _int32(g, g.input(1, 6, 5, 20), zp=7)
    g.output(g.rescale(g.op("ABS", [x], x.shape, "INT32"), "INT8", 0.9, zp_out=-20))


@case("negate_int8", "INT8")
@case("negate_int16", "INT16")
@case("negate_int32", "INT32")
def _negate(g: Graph, dtype):
    x = g.input(1, 6, 5, 20, dtype=dtype, low=-100 if dtype != "INT8" else None)
    g.output(g.op("NEGATE", [x, g.zero(dtype), g.zero(dtype)], x.shape, dtype))


@case("clamp_int8", "INT8", -50, 77)
@case("clamp_int16", "INT16", -5000, 20000)
def _clamp(g: Graph, dtype, low, high):
    x = g.input(1, 6, 5, 20, dtype=dtype)
    bounds = [list(np.array([v], np.int8 if dtype == "INT8" else np.int16).view(np.uint8)) for v in (low, high)]
    g.output(
        g.op(
            "CLAMP",
            [x],
            x.shape,
            dtype,
            min_val=bounds[0],
            max_val=bounds[1],
            nan_mode=ts.NanPropagationMode.PROPAGATE,
        )
    )


@case("conv_clamp")
def _conv_clamp(g: Graph):
    y = g.conv(g.input(1, 8, 8, 16), 16)
    bounds = [[206], [77]]
    mode = ts.NanPropagationMode.PROPAGATE
    g.output(g.op("CLAMP", [y], y.shape, "INT8", min_val=bounds[0], max_val=bounds[1], nan_mode=mode))


@case("asr_round", True, "INT32")
@case("asr", False, "INT32")
@case("asr_int16", True, "INT16")
def _asr(g: Graph, rounds, dtype):
    x = g.input(1, 6, 5, 20, dtype=dtype)
    y = g.input(1, 6, 5, 20, dtype=dtype, low=0, high=31 if dtype == "INT32" else 15)
    g.output(g.op("ARITHMETIC_RIGHT_SHIFT", [x, y], x.shape, dtype, round=rounds))


@case("lsl", "LOGICAL_LEFT_SHIFT")
@case("lsr", "LOGICAL_RIGHT_SHIFT")
def _shift(g: Graph, kind):
    x = g.input(1, 6, 5, 20, dtype="INT32")
    g.output(g.op(kind, [x, g.input(1, 6, 5, 20, dtype="INT32", low=0, high=31)], x.shape, "INT32"))


@case("lsr_int8", "INT8", 7)
@case("lsr_int16", "INT16", 15)
def _narrow_shift(g: Graph, dtype, most):
    x = g.input(1, 6, 5, 20, dtype=dtype)
    g.output(g.op("LOGICAL_RIGHT_SHIFT", [x, g.input(1, 6, 5, 20, dtype=dtype, low=0, high=most)], x.shape, dtype))


@case("bitwise_and", "BITWISE_AND", "INT32")
@case("bitwise_or_int8", "BITWISE_OR", "INT8")
@case("bitwise_xor_int16", "BITWISE_XOR", "INT16")
def _bitwise(g: Graph, kind, dtype):
    x, y = g.input(1, 6, 5, 20, dtype=dtype), g.input(1, 6, 5, 20, dtype=dtype)
    g.output(g.op(kind, [x, y], x.shape, dtype))


@case("logical_and", "LOGICAL_AND")
@case("logical_or", "LOGICAL_OR")
@case("logical_xor", "LOGICAL_XOR")
def _logical(g: Graph, kind):
    x, y = g.input(1, 6, 5, 20, dtype="BOOL"), g.input(1, 6, 5, 20, dtype="BOOL")
    g.output(g.op(kind, [x, y], x.shape, "BOOL"))


@case("logical_not")
def _logical_not(g: Graph):
    x = g.input(1, 6, 5, 20, dtype="BOOL")
    g.output(g.op("LOGICAL_NOT", [x], x.shape, "BOOL"))


@case("equal", "EQUAL")
@case("greater", "GREATER")
@case("greater_equal", "GREATER_EQUAL")
def _compare(g: Graph, kind):
    x, y = (g.input(1, 6, 5, 20, dtype="INT32", low=-3, high=3) for _ in range(2))
    g.output(g.op(kind, [x, y], x.shape, "BOOL"))


@case("select_int8", "INT8")
@case("select_int32", "INT32")
def _select(g: Graph, dtype):
    c = g.input(1, 6, 5, 20, dtype="BOOL")
    x, y = g.input(1, 6, 5, 20, dtype=dtype), g.input(1, 6, 5, 20, dtype=dtype)
    g.output(g.op("SELECT", [c, x, y], x.shape, dtype))


@case("greater_select")
def _greater_select(g: Graph):
    x, y = (g.input(1, 6, 5, 20, dtype="INT32", low=-99, high=99) for _ in range(2))
    c = g.op("GREATER", [x, y], x.shape, "BOOL")
    g.output(g.op("SELECT", [c, x, y], x.shape, "INT32"))


@case("intdiv")
def _intdiv(g: Graph):
    x = g.input(1, 6, 5, 20, dtype="INT32")
    y = g.input(1, 6, 5, 20, dtype="INT32", low=1, high=70000)
    g.output(g.op("INTDIV", [x, y], x.shape, "INT32"))


# Tables, rescales, casts ----------------------------------------------------------------------------------------------


@case("table_int8")
def _table(g: Graph):
    x = g.input(1, 6, 5, 20)
    g.output(g.op("TABLE", [x, g.random(256, low=-128)], x.shape, "INT8"))


@case("table_fused")
def _table_fused(g: Graph):
    y = g.conv(g.input(1, 8, 8, 16), 20)
    g.output(g.op("TABLE", [y, g.random(256, low=-128)], y.shape, "INT8"))


@case("tables_two")
def _tables(g: Graph):
    x = g.input(1, 6, 5, 20)
    y = g.op("TABLE", [x, g.random(256, low=-128)], x.shape, "INT8")
    z = g.op("TABLE", [g.conv(y, 20, pad=(1, 1, 1, 1)), g.random(256, low=-128)], x.shape, "INT8")
    g.output(g.op("TABLE", [z, g.random(256, low=-128)], x.shape, "INT8"))


@case("table_int16", None)
@case("table_int16_to_int16", "INT16")
def _table16(g: Graph, out):
    x = g.input(1, 6, 5, 20, dtype="INT16")
    values = (32000 * np.sin(np.linspace(-7, 7, 513))).round()
    y = g.op("TABLE", [x, g.const(values, "INT16")], x.shape, "INT32")
    g.output(y if out is None else g.rescale(y, out, 1 / 128))


@case("rescale_8_to_16", "INT8", "INT16", 77.7)
@case("rescale_8_to_32", "INT8", "INT32", 1234567.8)
@case("rescale_8_to_8", "INT8", "INT8", 0.73)
@case("rescale_16_to_8", "INT16", "INT8", 0.0035)
@case("rescale_16_to_32", "INT16", "INT32", 3.3)
@case("rescale_32_to_8", "INT32", "INT8", 5.7e-8)
@case("rescale_32_to_16", "INT32", "INT16", 1.4e-5)
@case("rescale_32_to_32", "INT32", "INT32", 0.37)
@case("rescale_per_channel", "INT8", "INT8", np.linspace(0.3, 1.4, 20))
@case("rescale_32_per_channel", "INT32", "INT8", np.linspace(1e-8, 6e-8, 20))
def _rescale(g: Graph, dtype, out, scale, rounding="SINGLE_ROUND"):
    zp_in, zp_out = (5 if dtype == "INT8" else 0), (-9 if out == "INT8" else 0)
    # With a 31-bit shift, TOSA wants |value| below 2**30.
    bound = 2**30 - 1 if dtype == "INT32" else None
    x = g.input(1, 6, 5, 20, dtype=dtype, low=bound and -bound, high=bound)
    g.output(g.rescale(x, out, scale, zp_in, zp_out, rounding))


@case("rescale_double_round", "DOUBLE_ROUND")
def _rescale_rounding(g: Graph, rounding):
    g.output(g.rescale(g.input(1, 6, 5, 20, dtype="INT32"), "INT8", 5.7e-8, rounding=rounding))


@case("rescale_unsigned_in", (True, False))
@case("rescale_unsigned_out", (False, True))
def _rescale_unsigned(g: Graph, unsigned):
    x = g.input(1, 6, 5, 20)
    g.output(g.rescale(x, "INT8", 1.0, -128 if unsigned[0] else 0, -128 if unsigned[1] else 0, unsigned=unsigned))


@case("cast_8_to_16", "INT8", "INT16")
@case("cast_8_to_32", "INT8", "INT32")
@case("cast_16_to_32", "INT16", "INT32")
@case("cast_bool_to_8", "BOOL", "INT8")
@case("cast_8_to_bool", "INT8", "BOOL")
def _cast(g: Graph, dtype, out):
    x = g.input(1, 6, 5, 20, dtype=dtype, **({"low": -2, "high": 2} if out == "BOOL" else {}))
    g.output(g.op("CAST", [x], x.shape, out))


@case("cast_32_to_8", "INT32", "INT8", 100)
@case("cast_16_to_8", "INT16", "INT8", 127)
@case("cast_32_to_16", "INT32", "INT16", 32767)
def _narrowing_cast(g: Graph, dtype, out, bound):
    x = g.input(1, 6, 5, 20, dtype=dtype, low=-bound, high=bound)
    g.output(g.op("CAST", [x], x.shape, out))


# Shapes ---------------------------------------------------------------------------------------------------------------


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


# Resize, gather, matmul -----------------------------------------------------------------------------------------------


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


# Networks -------------------------------------------------------------------------------------------------------------


@case("residual_block")
def _residual(g: Graph):
    x = g.conv(g.input(1, 24, 24, 3), 24, stride=(2, 2), pad=(0, 1, 0, 1))
    y = g.conv(x, 96, kernel=(1, 1))
    y = g.conv(y, 1, pad=(1, 1, 1, 1), depthwise=True)
    y = g.conv(y, 24, kernel=(1, 1))
    z = g.op("ADD", [_int32(g, x, 2.0**18), _int32(g, y, 0.8 * 2**18)], x.shape, "INT32")
    z = g.rescale(z, "INT8", 0.6 / 2**18)
    z = g.op(
        "AVG_POOL2D",
        [z, g.zero("INT8"), g.zero("INT8")],
        (1, 4, 4, 24),
        "INT8",
        **_window((3, 3), (3, 3), (0, 0, 0, 0)),
        acc_type=ts.DType.INT32,
    )
    g.output(g.conv(z, 10, kernel=(4, 4)))


@case("cascade")
def _cascade(g: Graph):
    """Large maps with small weights: Vela cascades them in stripes through rolling buffers."""
    x = g.conv(g.input(1, 48, 48, 8), 96, kernel=(1, 1))
    x = g.conv(x, 1, pad=(1, 1, 1, 1), depthwise=True)
    x = g.conv(x, 16, kernel=(1, 1))
    x = g.conv(x, 96, kernel=(1, 1))
    x = g.conv(x, 1, pad=(1, 1, 1, 1), depthwise=True)
    g.output(g.conv(x, 8, kernel=(1, 1)))

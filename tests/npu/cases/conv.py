"""Convolutions: depthwise, transposed, 3-D, dynamic weights; weights for every decoder."""

from __future__ import annotations

import numpy as np

from tests.helpers.npu_graphs import Graph, ts
from tests.npu.cases.registry import case


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
    # One scale: vela.rescale-of-product-per-channel.
    g.output(g.spread(y, 180, "INT8", "INT8", sigma=74, per_channel=False))


@case("conv16_two_rescales")
def _int48(g: Graph):
    """An int48 tensor with two users, which U85 stores in 64 bits."""
    y = g.conv(g.input(1, 6, 6, 8, dtype="INT16"), 12, rescale=None)
    g.output(g.spread(y, 72, "INT16", "INT16"), g.spread(y, 72, "INT16", "INT8"))

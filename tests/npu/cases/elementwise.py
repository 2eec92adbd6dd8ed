"""Elementwise operators, with their broadcasts."""

from __future__ import annotations

import numpy as np

from tests.helpers.npu_graphs import Graph, Tensor, ts
from tests.npu.cases.registry import case


def to_int32(g: Graph, x: Tensor, scale=1.0, zp=0, **kw) -> Tensor:
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
    x = to_int32(g, g.input(*a, dtype=dtype), scales[0], zp, rounding=rounding)
    y = to_int32(g, g.input(*b, dtype=dtype), scales[1], -zp, rounding=rounding)
    out = g.op(kind, [x, y], _broadcast(x, y), "INT32")
    g.output(g.rescale(out, dtype, scales[2], zp_out=2 * zp, rounding=rounding))


@case("add_same_scale")
def _add_same(g: Graph):
    x, y = to_int32(g, g.input(1, 6, 5, 20), zp=4), to_int32(g, g.input(1, 6, 5, 20), zp=-4)
    g.output(g.rescale(g.op("ADD", [x, y], x.shape, "INT32"), "INT8", 0.5))


@case("add_constant")
def _add_constant(g: Graph):
    x = to_int32(g, g.input(1, 6, 5, 20), 2.0**18)
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
    x, y = to_int32(g, g.input(1, 6, 5, 20, dtype=dtype)), to_int32(g, g.input(*second, dtype=dtype))
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
    x, y = (to_int32(g, g.input(*s, dtype=dtype, low=low), zp=zp) for s in (a, b))
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
    x = to_int32(g, g.input(1, 6, 5, 20), zp=7)
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


@case("lsr_large", "LOGICAL_RIGHT_SHIFT")
@case("lsl_large", "LOGICAL_LEFT_SHIFT")
@case("asr_large", "ARITHMETIC_RIGHT_SHIFT", round=False)
@case("asr_round_large", "ARITHMETIC_RIGHT_SHIFT", round=True)
def _large_shift(g: Graph, kind, **attributes):
    """So large that the machine looks pairs of bytes up; among all pairs are shifts that the data does not hold."""
    x = g.input(1, 64, 33, 16)
    g.output(g.op(kind, [x, g.input(1, 64, 33, 16, low=0, high=7)], x.shape, "INT8", **attributes))


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

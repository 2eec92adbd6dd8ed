"""Tables, rescales, casts."""

from __future__ import annotations

import numpy as np

from tests.helpers.npu_graphs import Graph
from tests.npu.cases.registry import case


@case("table_int8")
def _table(g: Graph):
    x = g.input(1, 6, 5, 20)
    g.output(g.op("TABLE", [x, g.random(256, low=-128)], x.shape, "INT8"))


@case("table_fused")
def _table_fused(g: Graph):
    y = g.conv(g.input(1, 8, 8, 16), 20)
    g.output(g.op("TABLE", [y, g.random(256, low=-128)], y.shape, "INT8"))


@case("tables_eight")
def _tables_eight(g: Graph):
    """Each table twice, so that it pays to keep all of them in internal memory."""
    x = g.input(1, 6, 5, 20)
    tables = [g.const(g.rng.permutation(256) - 128, "INT8") for _ in range(8)]
    for table in tables * 2:
        x = g.op("TABLE", [x, table], x.shape, "INT8")
    g.output(x)


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

"""A few operators together: what a schedule has to do with."""

from __future__ import annotations

from tests.helpers.npu_graphs import Graph, ts
from tests.npu.cases.elementwise import to_int32
from tests.npu.cases.pool import window
from tests.npu.cases.registry import case


@case("residual_block")
def _residual(g: Graph):
    x = g.conv(g.input(1, 24, 24, 3), 24, stride=(2, 2), pad=(0, 1, 0, 1))
    y = g.conv(x, 96, kernel=(1, 1))
    y = g.conv(y, 1, pad=(1, 1, 1, 1), depthwise=True)
    y = g.conv(y, 24, kernel=(1, 1))
    z = g.op("ADD", [to_int32(g, x, 2.0**18), to_int32(g, y, 0.8 * 2**18)], x.shape, "INT32")
    z = g.rescale(z, "INT8", 0.6 / 2**18)
    z = g.op(
        "AVG_POOL2D",
        [z, g.zero("INT8"), g.zero("INT8")],
        (1, 4, 4, 24),
        "INT8",
        **window((3, 3), (3, 3), (0, 0, 0, 0)),
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

"""A graph that Vela declines is traced back to the user's operator."""

from __future__ import annotations

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.support.errors import VelaError
from ethorch.tosa.ir import Graph, Origin
from ethorch.tosa.serialize import serialize
from ethorch.vela.diagnose import explain_refusal, find_refused

SPEC = EthosUCompileSpec("ethos-u55-128")


def graph() -> Graph:
    """A pool that U55 has no kernel for, between two operators that it has."""
    b = Builder()
    x = b.input("x", (1, 40, 40, 8), "INT8")
    b.origin = Origin("relu", "aten.relu.default", "body.act", "net.py:7")
    y = b.emit("CLAMP", x, min_val=-3, max_val=100)
    b.origin = Origin("pool", "aten.avg_pool2d.default", "body.pool", "net.py:9")
    y = b.emit("AVG_POOL2D", y, kernel=(9, 9), stride=(1, 1), pad=(4, 4, 4, 4), input_zp=0, output_zp=0)
    b.origin = Origin("table", "aten.tanh.default", "head", "net.py:12")
    b.graph.outputs.append(b.emit("TABLE", y, b.const(np.arange(-128, 128).astype(np.int8))))
    return b.graph


def test_the_operator_that_vela_declines_is_named_with_its_line() -> None:
    with pytest.raises(VelaError) as declined:
        vela.compile(serialize(graph()), SPEC)
    assert [op.name for op, _ in find_refused(graph(), SPEC)] == ["AVG_POOL2D"]
    text = str(explain_refusal(declined.value, graph(), SPEC))
    assert "AVG_POOL2D of aten.avg_pool2d.default at body.pool (net.py:9)" in text
    assert "additional_checks" in text
    assert "net.py:7" not in text

"""The walk's refusals: a stable id, a sentence without the place, which stands before it, and a way out."""

from __future__ import annotations

import re

import pytest
import torch

from ethorch.builder.builder import Builder
from ethorch.builder.qparams import QParams, QTensor
from ethorch.errors import Reason
from ethorch.fx.control_flow import held
from ethorch.lower import reasons
from ethorch.ops.spec import OPS
from ethorch.tosa.ir import Origin, Value

pytestmark = pytest.mark.core

GRAPH = torch.export.export(torch.nn.Linear(4, 3), (torch.zeros(2, 4),)).graph
NODE = next(node for node in GRAPH.nodes if node.op == "call_function")
INT16 = QTensor(Value("x", (4,), "INT16"), ((0,),), QParams((1.0,), (0,), -32767, 32767, "INT16"))
PLAIN = QTensor(Value("y", (4,), "INT32"), ((0,),), None)


def every_reason() -> list[Reason]:
    made = [
        reasons.not_quantized(NODE),
        reasons.no_table("aten.exp.default", OPS["aten.exp.default"], (INT16, [PLAIN], 2.0)),
        reasons.no_integer_dtype(NODE),
        reasons.no_dtype(Builder(floats=["FP32"]), "its result", NODE),
        reasons.unknown_operator(NODE),
        reasons.not_decomposed(NODE),
        reasons.no_float_form("aten.lgamma.default"),
        reasons.no_tensor(NODE),
        reasons.no_condition(NODE),
    ]
    return [*made, *(value for value in vars(reasons).values() if isinstance(value, Reason))]


def test_every_refusal_has_an_id_a_sentence_and_a_way_out() -> None:
    for reason in every_reason():
        assert re.fullmatch(r"[a-z_]+\.[a-z0-9_]+", reason.id), reason
        assert reason.text and not reason.text.endswith("."), reason
        assert reason.way_out.endswith("."), reason


def test_what_a_table_reads_is_counted() -> None:
    reason = reasons.no_table("aten.exp.default", OPS["aten.exp.default"], (INT16, [PLAIN, INT16], 2.0))
    assert reason.text.endswith("and reads 2 of quantized numbers and 1 of plain integers")


def test_a_refusal_inside_a_loop_says_that_the_cpu_has_none() -> None:
    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 2), (torch.tensor(0), x))[1]

    program = torch.export.export(Loop(), (torch.zeros(2),))
    (node,) = [node for node in program.graph.nodes if node.target is torch.ops.higher_order.while_loop]
    reason = reasons.holds_refused(held(node)[1], Origin(target="aten.topk.default"), Reason("operator.unknown", "it is not known"))
    assert reason.id == "control_flow.branch"
    assert reason.text == "the body holds aten.topk.default, which cannot run: it is not known [operator.unknown]"
    assert "while_loop" in reason.way_out

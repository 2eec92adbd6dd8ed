"""The walk's refusals: a stable id, a sentence without the place, which stands before it, and a way out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import ethorch
from ethorch.lower import reasons
from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.lower.fx.control_flow import subgraphs_of
from ethorch.lower.ops.spec import OPS
from ethorch.lower.replacements import CUSTOM, OTHERS, REPLACEMENTS, instead_of
from ethorch.support.errors import Reason
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import Origin, Value
from ethorch.tosa.limits import REMEDIES

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


def test_every_refusal_has_an_id_a_sentence_and_a_remedy() -> None:
    for reason in every_reason():
        assert re.fullmatch(r"[a-z_]+\.[a-z0-9_]+", reason.id), reason
        assert reason.text and not reason.text.endswith("."), reason
        assert reason.remedy.endswith("."), reason


def shown_by_executorch() -> set[str]:
    """Names of the operators that an edge program may hold: PyTorch's core operators, and those with a kernel of ExecuTorch's."""
    from executorch.runtime import Runtime

    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    found = {name for name in names if torch.Tag.core in operator_of(name).tags}
    return found | {name for name in Runtime.get().operator_registry.operator_names if name.startswith("aten::")}


def operator_of(name: str) -> torch._ops.OpOverload:
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def test_every_operator_has_something_to_be_replaced_by() -> None:
    """Where ethorch has no lowering; the general sentence is for operators that no release of ExecuTorch shows."""
    known = {name.split(".")[1].removesuffix("_copy") for name in OPS}
    names = {name.removeprefix("aten::").split(".")[0].removesuffix("_copy") for name in shown_by_executorch()} - known
    assert len(names) > 30
    assert {name for name in names if instead_of(f"aten.{name}.default") == OTHERS} == set()
    assert instead_of("mine.op.default") == CUSTOM
    assert all(text.endswith(".") and len(text) > 25 for _, text in REPLACEMENTS)


def test_every_limit_has_a_remedy() -> None:
    for target in TARGETS.values():
        for operator, limits in target.limits.items():
            features = dict.fromkeys(limits.ranges, 10**9)
            refused = limits.refuse(operator, "INT48", features, target.name)
            assert refused is not None and refused.remedy.endswith("."), operator
            for feature in limits.ranges:
                assert limits.remedies.get(feature) or REMEDIES[feature].endswith("."), f"{operator}.{feature}"


def test_no_refusal_in_the_code_is_without_a_remedy() -> None:
    """``Reason`` and ``refuse`` take three texts; none is empty or says no more than that the operator stays where it is."""
    calls = 0
    for path in Path(ethorch.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            if name != "Reason" and not (name == "refuse" and len(node.args) == 3):
                continue
            calls += 1
            assert len(node.args) + len(node.keywords) == 3, f"{path}:{node.lineno}"
            remedy = node.args[2] if len(node.args) == 3 else node.keywords[0].value
            if isinstance(remedy, ast.Constant):
                assert remedy.value.endswith(".") and "stays on the CPU" not in remedy.value, f"{path}:{node.lineno}"
    assert calls > 40


def test_what_a_table_reads_is_counted() -> None:
    reason = reasons.no_table("aten.exp.default", OPS["aten.exp.default"], (INT16, [PLAIN, INT16], 2.0))
    assert reason.text.endswith("got 2 quantized tensors and 1 integer tensor")


def test_a_refusal_inside_a_loop_says_that_the_cpu_has_none() -> None:
    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 2), (torch.tensor(0), x))[1]

    program = torch.export.export(Loop(), (torch.zeros(2),))
    (node,) = [node for node in program.graph.nodes if node.target is torch.ops.higher_order.while_loop]
    unknown = Reason("operator.unknown", "it is not known", "")
    reason = reasons.holds_refused(subgraphs_of(node)[1], Origin(target="aten.topk.default"), unknown)
    assert reason.id == "control_flow.branch"
    assert (
        reason.text == "the loop body contains aten.topk.default, which cannot run on the NPU: it is not known [operator.unknown]"
    )
    assert "while_loop" in reason.remedy


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4).scatter_reduce(0, torch.tensor([0, 1, 1, 3]), torch.relu(x), "prod")


def test_a_quantized_operator_without_a_decomposition_is_refused_for_its_arguments() -> None:
    samples = [torch.randn(4) for _ in range(2)]
    quantized = ethorch.quantize(Product(), samples[0], "ethos-u85-256", calibration=samples)
    node = next(node for node in quantized.graph.nodes if "scatter_reduce" in node.name)
    reason = reasons.not_decomposed(node)
    assert "arguments" in reason.text and "EthosUQuantizer" not in reason.remedy and "torch.where" in reason.remedy

"""Checks by which a user keeps operators on the CPU: whatever ethorch keeps whole or takes apart, by every name it has."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from executorch.exir.backend.operator_support import DontPartition, DontPartitionModule, DontPartitionName
from executorch.exir.dialects._ops import ops as exir_ops
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.operator_support import OperatorSupportBase

from ethorch import EthosUCompileSpec, EthosUPartitioner, runtime
from ethorch.backend.break_up import edge_operator
from ethorch.backend.user_checks import UserChecks
from ethorch.lower.fx.node import Converted
from ethorch.lower.ops.sample_calls import INPUTS, Call, inputs_for
from ethorch.lower.ops.samples import Bools, W
from tests.helpers.ladder.samples import SPECS
from tests.helpers.quantized import Quantized, lower, quantized, samples

aten, edge = torch.ops.aten, exir_ops.edge.aten
SPEC = EthosUCompileSpec("ethos-u85-256")


class DontPartitionTarget(OperatorSupportBase):
    """A check as a user writes one."""

    def __init__(self, target: Any):
        self.target = target

    def is_node_supported(self, submodules: Mapping[str, nn.Module], node: Node) -> bool:
        return node.target != self.target


def program_of(name: str, *, in_edge_dialect: bool) -> tuple[Converted, Node]:
    """A program of one operator, called as in its first sample, and the node that calls it."""
    sample, graph = SPECS[name].samples[0], Graph()
    call = Call(name, sample).function

    def fill(arg: Any) -> Any:
        if isinstance(arg, (*INPUTS, W)):
            node = graph.placeholder(f"x{len(graph.nodes)}")
            name = "bool" if isinstance(arg, Bools) else getattr(arg, "dtype", "float32")
            node.meta["val"] = torch.zeros(arg.shape, dtype=getattr(torch, name))
            return node
        return [fill(a) for a in arg] if isinstance(arg, (list, tuple)) else arg

    args = [fill(arg) for arg in sample.args]
    keywords = {key: getattr(torch, arg) if key == "dtype" else fill(arg) for key, arg in sample.kwargs.items()}
    node = graph.call_function(edge_operator(call) if in_edge_dialect else call, tuple(args), keywords)
    graph.output(node)
    return Converted(GraphModule(nn.Module(), graph)), node


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("in_edge_dialect", [False, True])
def test_every_operator_is_found_by_its_aten_and_its_edge_name(in_edge_dialect: bool, every: int) -> None:
    for name, spec in list(SPECS.items())[::every]:
        program, node = program_of(name, in_edge_dialect=in_edge_dialect)
        call = Call(name, spec.samples[0]).function
        edge_name = Graph().call_function(edge_operator(call)).name
        checks = [
            DontPartition(call),
            DontPartition(edge_operator(call)),
            DontPartition(str(call)),
            DontPartitionName(edge_name),
            DontPartitionTarget(call),
            DontPartitionTarget(edge_operator(call)),
        ]
        other = DontPartition(aten.cholesky.default)
        asked = UserChecks([*checks, other])
        assert asked.refusals(program)[node].id == "user.check", name
        assert asked.without_match() == [other], name


class Mixed(nn.Module):
    """Operators that ethorch keeps whole, and attention, which the quantizer takes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 2, 1), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(self.conv(x))
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return torch.softmax(x, -1)


@pytest.fixture(scope="module")
def mixed() -> Quantized:
    torch.manual_seed(0)
    return quantized(Mixed(), samples((1, 2, 4, 6)), target="ethos-u85-256")


ATTENTION = ["aten._softmax.default", "aten.bmm.default", "aten.bmm.default", "aten.mul.Tensor"]


CHECKS: dict[str, tuple[list[OperatorSupportBase], list[str]]] = {
    "convolution": ([DontPartition(edge.convolution.default)], ["aten.convolution.default"]),
    "addmm": ([DontPartition(edge.addmm.default)], ["aten.addmm.default"]),
    "softmax": ([DontPartition(aten._softmax.default)], ["aten._softmax.default"] * 2),
    "a name": ([DontPartitionName("aten_softmax_int_1")], ["aten._softmax.default"]),
    "attention": ([DontPartition(aten.scaled_dot_product_attention.default)], ATTENTION),
    "a module": ([DontPartitionModule(instance_name="linear"), DontPartition(aten.selu.default)], ["aten.addmm.default"]),
}


@pytest.mark.parametrize("name", [x if x in ("attention", "a module") else pytest.param(x, marks=pytest.mark.long) for x in CHECKS])
def test_the_cpu_runs_what_a_check_refuses(mixed: Quantized, name: str, caplog: pytest.LogCaptureFixture) -> None:
    checks, on_cpu = CHECKS[name]
    inputs = samples((1, 2, 4, 6))[0]
    partitioner = EthosUPartitioner(SPEC, checks)
    with caplog.at_level(logging.WARNING, "ethorch"):
        program = lower(mixed.module, inputs, partitioner)
    assert partitioner.report.without_kernel == []
    assert b"softmax.int_out" not in program and b"conv2d" not in program
    refused = sorted(refusal.origin.target for refusal in partitioner.report.refusals if refusal.reason.id == "user.check")
    assert [target for target in refused if target.split(".")[1] not in ("permute_copy", "view_copy", "baddbmm")] == on_cpu
    expected = mixed.module(*inputs)
    assert (runtime.load(program)(*inputs)[0] - expected).abs().max() <= 0.02 * expected.abs().max()
    assert ("user.check_matches_nothing" in caplog.text) == (len(checks) == 2)


class Sampled(nn.Module):
    """The first sample of an operator as the submodule ``op``."""

    def __init__(self, name: str):
        super().__init__()
        self.op = Call(name, SPECS[name].samples[0])

    def forward(self, *inputs: Tensor) -> Any:
        return self.op(*inputs)


class Record(OperatorSupportBase):
    """Accept every operator and record its target."""

    def __init__(self) -> None:
        self.targets: dict[Any, None] = {}

    def is_node_supported(self, submodules: Mapping[str, nn.Module], node: Node) -> bool:
        self.targets[node.target] = None
        return True


@pytest.mark.parametrize(
    "name",
    [
        "aten.masked_fill.Scalar",
        *(
            pytest.param(f"aten.{name}.default", marks=pytest.mark.long)
            for name in ("affine_grid_generator", "log_sigmoid", "logit", "logsumexp", "upsample_linear1d", "upsample_nearest2d")
        ),
    ],
)
def test_executorch_lowers_what_decompositions_create(name: str) -> None:
    """Decompositions that create tensors (``arange``, ``full``) used a fake mode of their own, which ExecuTorch refuses."""
    inputs = inputs_for(SPECS[name].samples[0], 0)
    module = quantized(Sampled(name), [inputs], target="ethos-u85-256").module
    record = Record()
    lower(module, inputs, EthosUPartitioner(SPEC, [record]))
    computing = [target for target in record.targets if not any(word in str(target) for word in ("quantize", "view", "getitem"))]
    for check in (DontPartitionModule(instance_name="op"), DontPartition(computing[len(computing) // 2])):
        partitioner = EthosUPartitioner(SPEC, [check])
        lower(module, inputs, partitioner)
        assert any(refusal.reason.id == "user.check" for refusal in partitioner.report.refusals)

"""The partitioner: what goes to the NPU, in how many delegates, and why the rest does not."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.operator_support import DontPartition, DontPartitionModule, DontPartitionName
from executorch.exir.dialects._ops import ops as exir_ops
from torch import nn
from torch.fx.passes.operator_support import OperatorSupportBase
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

import ethorch
from ethorch import EthosUCompileSpec, EthosUPartitioner, EthosUQuantizer, runtime
from ethorch.arm import ArmCompileSpecBuilder
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name
from ethorch.program.program import record_of
from ethorch.targets.npus import LIMITS, TARGETS
from ethorch.tosa.limits import Limits, upto
from tests.helpers.quantized import lower, prepared, quantized

SPEC = EthosUCompileSpec("ethos-u55-128")
PER_CHANNEL = get_symmetric_quantization_config(is_per_channel=True)


class TopkInTheMiddle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.topk(x, 8, dim=3).values
        return self.last(x)


def steps(found: torch.Tensor, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> float:
    """Largest distance to the fake-quantized module, in units of its output scale."""
    (last,) = module.graph.output_node().all_input_nodes
    with torch.no_grad():
        return ((found - module(*inputs)).abs().max() / last.args[1]).item()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_unsupported_in_the_middle_makes_two_delegates_and_the_right_result(caplog: pytest.LogCaptureFixture) -> None:
    inputs = (torch.randn(1, 3, 8, 8),)
    module = quantized(TopkInTheMiddle(), [inputs]).module
    partitioner = EthosUPartitioner(SPEC)
    with caplog.at_level(logging.INFO, "ethorch"):
        program = runtime.load(lower(module, inputs, partitioner))
    assert len(program.delegates) == 2
    (found,) = program(*inputs)
    assert found.shape == (1, 4, 8, 8)
    assert len(found.unique()) > 30
    assert steps(found, module, inputs) <= 2.01
    (refusal,) = [r for r in partitioner.report.refusals if r.origin.target.startswith("aten.topk")]
    assert refusal.reason.id == "operator.unknown"
    assert refusal.origin.source.startswith("test_partitioner.py:")
    assert "3 of 4 PyTorch operators on ethos-u55-128 in 2 delegates; 1 on the CPU: aten.topk" in caplog.text


def test_an_unquantized_model_is_said_loudly(caplog: pytest.LogCaptureFixture) -> None:
    inputs = (torch.randn(1, 3, 8, 8),)
    partitioner = EthosUPartitioner(SPEC)
    model = TopkInTheMiddle().eval()
    with caplog.at_level(logging.WARNING, "ethorch"):
        program = runtime.load(lower(model, inputs, partitioner))
    assert "no operator is quantized" in caplog.text
    assert program.delegates == ()
    torch.testing.assert_close(program(*inputs)[0], model(*inputs), rtol=1e-4, atol=1e-4)
    assert {refusal.reason.id for refusal in partitioner.report.refusals} >= {"graph.input_not_quantized", "operator.unknown"}


def test_a_constant_goes_to_each_delegate_that_reads_it() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = torch.arange(8)  # int64: ExecuTorch casts it to float in the graph
            return torch.topk(x * steps, 8, dim=3).values * steps * 2

    inputs = (torch.randn(1, 3, 8, 8),)
    module = quantized(Model(), [inputs]).module
    program = runtime.load(lower(module, inputs, EthosUPartitioner(SPEC)))
    assert len(program.delegates) == 2
    assert steps(program(*inputs)[0], module, inputs) <= 2.01


def test_an_operator_that_is_removed_leaves_no_gap() -> None:
    """ExecuTorch removes what does nothing; its quantize node then follows on a dequantize node."""
    inputs = (torch.randn(1, 3, 5, 5),)
    module = quantized(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)), [inputs]).module
    first = next(node for node in module.graph.nodes if op_name(node.target) in QUANTIZE and node.args[0].op == "call_function")
    (back,) = first.users
    with module.graph.inserting_after(back):
        again = module.graph.call_function(first.target, (back, *first.args[1:]))
    with module.graph.inserting_after(again):
        last = module.graph.call_function(back.target, (again, *back.args[1:]))
    for user in [user for user in back.users if user is not again]:
        user.replace_input_with(back, last)
    module.recompile()
    partitioner = EthosUPartitioner(SPEC)
    program = runtime.load(lower(module, inputs, partitioner))
    assert len(program.delegates) == 1
    assert steps(program(*inputs)[0], module, inputs) <= 2.01


def test_a_table_of_parameters_looked_up_is_a_constant() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.places = nn.Conv2d(3, 4, 1), torch.randint(0, 9, (25,))
            self.table = nn.Parameter(torch.randn(9, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x) + self.table[self.places].t().view(1, 4, 5, 5)

    inputs = (torch.randn(1, 3, 5, 5),)
    module = quantized(Model(), [inputs]).module
    partitioner = EthosUPartitioner(SPEC)
    program = runtime.load(lower(module, inputs, partitioner))
    assert partitioner.report.refusals == []
    assert len(program.delegates) == 1


def test_constants_that_are_quantized_in_the_graph_are_constants() -> None:
    """``fold_quantize=False`` leaves weights in float, with a quantize node behind each."""
    inputs = (torch.randn(1, 3, 5, 5),)
    graph = prepared(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), [inputs], EthosUQuantizer(SPEC).set_global(PER_CHANNEL))
    module = convert_pt2e(graph, fold_quantize=False)
    partitioner = EthosUPartitioner(SPEC)
    program = runtime.load(lower(module, inputs, partitioner))
    assert partitioner.report.refusals == []
    assert len(program.delegates) == 1
    assert steps(program(*inputs)[0], module, inputs) <= 1.01


class ReadTwice(nn.Module):
    """A tensor from the CPU whose dequantize node is read by two operators, as ExecuTorch removes casts to the same dtype.

    Args:
        reader: what else reads it, beside an operator on the NPU.
    """

    def __init__(self, reader: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.reader, self.linear = reader, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = torch.topk(torch.tanh(x), 8).values
        one, other = x.to(torch.float32), x.to(torch.float32)
        return self.linear(one * 2), self.reader(other)


READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the CPU": lambda x: torch.topk(x, 3).values,
    "another delegate": lambda x: torch.topk(x, 8).values + x,
    "both": lambda x: torch.topk(torch.topk(x, 8).values + x, 3).values + x[:, :3],
    "the output": lambda x: x,
    "control flow": lambda x: torch.cond(x.sum() > 3, lambda y: y * 2, lambda y: y + 1, (x,)),
}


@pytest.mark.parametrize("name", [x if x == "both" else pytest.param(x, marks=pytest.mark.long) for x in READERS])
def test_a_dequantize_node_read_inside_and_outside_of_a_delegate(name: str) -> None:
    inputs = (torch.randn(2, 8),)
    module = quantized(ReadTwice(READERS[name]), [inputs]).module
    shared = torch.export.export(module, inputs).run_decompositions({})
    for node in [n for n in shared.graph.nodes if op_name(n.target) in DEQUANTIZE]:
        twins = [n for n in shared.graph.nodes if n.target == node.target and n.args == node.args]
        for twin in twins[1:]:
            twin.replace_all_uses_with(twins[0])
    shared.graph.eliminate_dead_code()
    shared.graph_module.recompile()
    edge = to_edge_transform_and_lower(
        shared, partitioner=[EthosUPartitioner(SPEC)], compile_config=EdgeCompileConfig(_check_ir_validity=False)
    )
    program = runtime.load(edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False)).buffer)
    assert program.delegates
    for found, wanted in zip(program(*inputs), module(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, atol=0.05, rtol=0)


def test_additional_checks_keep_operators_on_the_cpu() -> None:
    inputs = (torch.randn(1, 3, 8, 8),)
    module = quantized(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)), [inputs]).module

    class NoRelu(OperatorSupportBase):
        def is_node_supported(self, submodules: object, node: torch.fx.Node) -> bool:
            return "relu" not in op_name(node.target)

    partitioner = EthosUPartitioner(SPEC, additional_checks=[NoRelu()])
    program = runtime.load(lower(module, inputs, partitioner))
    refused = {refusal.origin.target: refusal.reason.id for refusal in partitioner.report.refusals}
    assert refused["aten.relu.default"] == "user.check"
    assert "graph.output_not_quantized" in refused.values()  # the convolution whose clamp went away
    (found,) = program(*inputs)
    assert steps(found, module, inputs) <= 2.01


def test_what_the_silicon_cannot_do_has_a_reason_with_the_row(monkeypatch) -> None:
    monkeypatch.setitem(LIMITS["u55"], "CONV2D", Limits({"ifm_c": upto(3)}))
    inputs = (torch.randn(1, 4, 32, 32),)
    module = quantized(nn.Conv2d(4, 4, 3), [inputs]).module
    partitioner = EthosUPartitioner(SPEC)
    runtime.load(lower(module, inputs, partitioner))
    (refusal,) = partitioner.report.refusals
    assert refusal.reason.id == "CONV2D.ifm_c"
    assert "4" in refusal.reason.text
    assert "expected 1..3 on ethos-u55-128" in refusal.reason.text
    assert partitioner.report.to_json()["cpu"][0]["id"] == "CONV2D.ifm_c"


def test_an_index_of_the_largest_leaves_the_npu_as_int32() -> None:
    """PyTorch's is int64, which no NPU has: one cast is what is left to the CPU."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x).argmax(1)

    inputs = (torch.randn(3, 16),)
    module, partitioner = quantized(Classifier(), [inputs]).module, EthosUPartitioner(SPEC)
    (found,) = runtime.load(lower(module, inputs, partitioner))(*inputs)
    assert torch.equal(found, module(*inputs)) and found.dtype == torch.int64
    assert len(partitioner.report.delegated) == 1
    assert [refusal.origin.target for refusal in partitioner.report.refusals] == ["dim_order_ops._to_dim_order_copy.default"]


def test_the_reason_is_the_truest_one() -> None:
    """An index that is also int64 is refused because GATHER is missing."""

    class Both(nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return x.mul_(2).index_select(0, index)

    inputs = (torch.randn(5, 8), torch.tensor([3, 1]))
    partitioner = EthosUPartitioner(SPEC)
    lower(quantized(Both(), [inputs]).module, inputs, partitioner)
    found = {(refusal.origin.target, refusal.reason.id) for refusal in partitioner.report.refusals}
    assert found == {("aten.index_select.default", "GATHER.absent")}


def test_older_spelling_of_the_compile_spec_and_guards() -> None:
    spec = (
        ArmCompileSpecBuilder()
        .ethosu_compile_spec(
            "ethos-u55-128",
            system_config="Ethos_U55_High_End_Embedded",
            memory_mode="Shared_Sram",
            extra_flags="--output-format=raw --debug-force-regor",
        )
        .build()
    )
    inputs = (torch.randn(2, 16),)
    module = quantized(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5)), [inputs], guards=True).module
    program = runtime.load(lower(module, inputs, EthosUPartitioner(spec)))
    assert len(program.delegates) == 1
    assert steps(program(*inputs)[0], module, inputs) <= 1.01


def test_channels_last_crosses_the_boundary_without_a_transpose(tmp_path) -> None:
    spec = EthosUCompileSpec("ethos-u55-128").dump_intermediate_artifacts_to(tmp_path)
    inputs = (torch.randn(1, 3, 9, 7).to(memory_format=torch.channels_last),)
    module = quantized(nn.Conv2d(3, 5, 3), [inputs]).module
    program = runtime.load(lower(module, inputs, EthosUPartitioner(spec)))
    text = (tmp_path / "delegate_0.txt").read_text()
    assert "input" in text
    assert "TRANSPOSE" not in text
    assert steps(program(*inputs)[0], module, inputs) <= 1.01


def test_a_tensor_read_by_npu_and_cpu() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.relu(self.conv(x))
            return self.conv(x) * y, torch.topk(y, y.shape[-1]).values

    inputs = (torch.randn(1, 3, 6, 6),)
    module = quantized(Both(), [inputs]).module
    program = runtime.load(lower(module, inputs, EthosUPartitioner(SPEC)))
    assert len(program.delegates) == 1
    product, order = program(*inputs)
    expected = module(*inputs)
    scale = expected[0].abs().max() / 100
    assert (product - expected[0]).abs().max() < scale
    assert (order - expected[1]).abs().max() < expected[1].abs().max() / 100


ONE_OF_EACH = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name not in ONE_OF_EACH)) for name in TARGETS])
def test_every_target_compiles(name: str) -> None:
    inputs = (torch.randn(1, 3, 8, 8),)
    module = quantized(
        nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)), [inputs]
    ).module
    partitioner = EthosUPartitioner(EthosUCompileSpec(name))
    lower(module, inputs, partitioner)
    assert partitioner.report.npu_operators == 5
    assert partitioner.report.refusals == []


def test_delegates_never_form_a_circle() -> None:
    """NPU -> CPU -> NPU with a bypass from the first to the last: two delegates, not one that waits for itself."""

    class Bypass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            return self.b(torch.topk(y, y.shape[-1]).values) + y

    inputs = (torch.randn(1, 2, 5, 5),)
    module = quantized(Bypass(), [inputs]).module
    program = runtime.load(lower(module, inputs, EthosUPartitioner(SPEC)))
    assert len(program.delegates) == 2
    assert steps(program(*inputs)[0], module, inputs) <= 3.01


def test_quantize_nodes_are_known_by_name() -> None:
    assert "quantized_decomposed.quantize_per_tensor.default" in QUANTIZE


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Tanh())
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.head(self.body(x)))


@pytest.mark.parametrize(
    ("check", "kept"),
    [
        (DontPartitionName("sigmoid", exact=False), {"aten.sigmoid.default"}),
        (DontPartitionModule(instance_name="body"), {"aten.convolution.default", "aten.tanh.default"}),
        *(
            pytest.param(check, kept, marks=pytest.mark.long)
            for check, kept in (
                (DontPartition("sigmoid", exact=False), {"aten.sigmoid.default"}),
                (DontPartition(torch.ops.aten.tanh.default), {"aten.tanh.default"}),
                (DontPartition(exir_ops.edge.aten.tanh.default), {"aten.tanh.default"}),
                (DontPartitionModule(module_name="Tanh"), {"aten.tanh.default"}),
                (DontPartitionModule(instance_name="head"), {"aten.convolution.default"}),
                (DontPartitionModule(module_name="Nothing"), set()),
            )
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_checks_that_executorch_ships(check: OperatorSupportBase, kept: set[str]) -> None:
    inputs = (torch.randn(1, 3, 8, 8),)
    module = quantized(Named(), [inputs]).module
    partitioner = EthosUPartitioner(SPEC, additional_checks=[check])
    program = runtime.load(lower(module, inputs, partitioner))
    assert {(r.origin.target, r.reason.id) for r in partitioner.report.refusals} == {(name, "user.check") for name in kept}
    assert partitioner.report.npu_operators == 4 - len(kept)
    assert steps(program(*inputs)[0], module, inputs) <= 2.01


class Found(nn.Module):
    """Where the largest is, as int64, beside what the CPU sorts: the sum of the two is in another delegate than the place."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.lin(x))
        return torch.argmax(y, 1) + torch.topk(y, 8)[0]


def test_an_int64_that_two_delegates_share_is_cast_in_the_second() -> None:
    torch.manual_seed(0)
    steps = [(torch.randn(1, 8),) for _ in range(4)]
    program = ethorch.compile(Found().eval(), steps[0], "ethos-u55-128", calibration=steps, progress=False)
    assert len(record_of(program).payloads) == 2 and record_of(program).quantized is not None
    assert ethorch.sqnr_db([record_of(program).quantized(*step) for step in steps], [program(*step) for step in steps]) > 40


class Marked(nn.Module):
    """Rows, which the CPU picks, times the mark of the largest, a truth value made a number."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.lin = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.lin(self.rows(ids))
        return x * (torch.argmax(x, -1, keepdim=True) == torch.arange(8)).to(torch.float32)


def test_a_cast_to_numbers_stays_with_their_codes() -> None:
    torch.manual_seed(0)
    steps = [(torch.randint(20, (1, 5)),) for _ in range(4)]
    program = ethorch.compile(Marked().eval(), steps[0], "ethos-u55-128", calibration=steps, progress=False)
    assert len(record_of(program).payloads) == 1 and record_of(program).quantized is not None
    assert ethorch.sqnr_db([record_of(program).quantized(*step) for step in steps], [program(*step) for step in steps]) > 40


class OneHot(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x, 5)


class NonZero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(torch.relu(x))


class Checked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        torch._assert_async((y >= 0).all())
        return y * 2


@pytest.mark.parametrize(
    ("model", "x"),
    [(OneHot(), torch.tensor([1, 2, 0])), (NonZero(), torch.tensor([1.0, -1.0, 2.0])), (Checked(), torch.linspace(-1, 1, 6))],
    ids=["one_hot", "nonzero", "assertion"],
)
@pytest.mark.parametrize("is_quantized", [pytest.param(False, marks=pytest.mark.long), True])
def test_assertions_alone_are_no_delegate(model: nn.Module, x: torch.Tensor, is_quantized: bool) -> None:
    exported = quantized(model, [(x,)]).program if is_quantized else torch.export.export(model, (x,))
    partitioner = EthosUPartitioner(SPEC)
    edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])
    assert len(partitioner.report.delegated) == is_quantized
    (found,) = runtime.load(edge.to_executorch().buffer)(x)
    torch.testing.assert_close(found.to(torch.float32), model(x).to(torch.float32), atol=0.02, rtol=0)

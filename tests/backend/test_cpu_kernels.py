"""What stays on the CPU: whether ExecuTorch has a kernel for it, and which refusal is the root of others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions

from ethorch import runtime
from ethorch.backend.break_up import edge_operator
from ethorch.backend.build import build_pte
from ethorch.backend.cpu_kernels import kernel_of, registered_kernels, without_kernel
from ethorch.lower.fx.node import op_name
from ethorch.lower.ops.spec import find
from ethorch.lower.replacements import OTHERS, instead_of
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.cpu_operators import CPU_OPERATORS, base_name


class Call(nn.Module):
    def __init__(self, function: Callable[..., object]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def edge_of(function: Callable[..., object], *inputs: Tensor):
    return to_edge(torch.export.export(Call(function), inputs), compile_config=EdgeCompileConfig(_check_ir_validity=False))


def ids(function: Callable[..., object], *inputs: Tensor) -> set[str]:
    nodes = edge_of(function, *inputs).exported_program().graph.nodes
    return {reason.id for node in nodes if node.op == "call_function" and (reason := without_kernel(node))}


X, Z = torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("function", "x", "wanted"),
    [
        (lambda x: torch.topk(x, 2)[0], X, set()),
        (lambda x: torch.relu(x) + x.sum(-1, keepdim=True), X, set()),
        (lambda x: x**2 + x**x + 2**x, X, set()),
        (
            lambda x: torch.native_channel_shuffle(x[None, ..., None, None].squeeze(0).repeat(1, 1, 2, 2), 2),
            X,
            {"cpu.no_out_variant"},
        ),
        (lambda x: torch.sort(x)[0], X, {"cpu.no_kernel"}),
        (lambda x: torch.view_as_real(torch.fft.rfft(x)), X, {"cpu.not_portable"}),
        (lambda x: torch.view_as_real(torch.fft.fft(x)), Z, {"cpu.no_kernel"}),
        (lambda x: torch.view_as_real(torch.fft.fft(x)), X, {"cpu.fft"}),
        (lambda z: torch.exp(z).abs(), Z, {"cpu.complex"}),
        (lambda z: (z * 2.0).abs(), Z, {"cpu.complex"}),
        (lambda z: (z - z[0]).abs(), Z, {"cpu.complex"}),
        (lambda x: torch.conv3d(x[None, None, None], x[None, None, None]), X, {"cpu.convolution_3d"}),
        (lambda x: torch.conv2d(x[None, None], x[None, None]), X, set()),
    ],
    ids=[
        "topk",
        "portable",
        "pow",
        "no out variant",
        "sort",
        "rfft",
        "fft",
        "fft of real numbers",
        "complex exp",
        "complex by a number",
        "complex broadcast",
        "convolution over three axes",
        "convolution over two axes",
    ],
)
def test_what_executorch_has_no_kernel_for_is_known(function: Callable[..., object], x: Tensor, wanted: set[str]) -> None:
    assert ids(function, x) == wanted


def test_what_is_said_to_take_complex_tensors_does() -> None:
    def everything(x: Tensor, z: Tensor) -> list[Tensor]:
        y = torch.fft.rfft(x)
        return [
            torch.fft.irfft(y), torch.view_as_real(y), y.abs(), (z + z).abs(), (z - z * z).abs(), (z * z).abs(), z * z,
            torch.cat([z, z]).abs(), z.permute(1, 0).abs(), z[:, 1:].abs(), z[0].abs(), z.sum(0).abs(), 
            torch.bmm(z[None], z.permute(1, 0)[None]).abs(),
            z.unsqueeze(0).expand(2, 3, 4).abs(), z.reshape(-1).abs(), z[:, :1].squeeze(1).abs(), z.clone().abs(),
        ]  # fmt: skip

    edge = edge_of(everything, X, Z)
    called = {getattr(node.target, "_op", None) for node in edge.exported_program().graph.nodes if node.op == "call_function"}
    names = {base_name(op._schema.name) for op in called if op is not None}
    complex_names = {name for name, operator in CPU_OPERATORS.items() if operator.has_complex_kernel}
    assert complex_names - {"squeeze"} <= names <= complex_names
    found = runtime.load(edge.to_executorch().buffer)(X, Z)
    for mine, wanted in zip(found, everything(X, Z), strict=True):
        torch.testing.assert_close(mine, wanted)


#: Parts of the names of operators for training, sparse tensors and other hardware.
ELSEWHERE = ("backward", "sparse", "miopen", "mkldnn")


def unlisted_operators() -> Iterator[torch._ops.OpOverload]:
    """Iterate over PyTorch's operators of tensors that ethorch does not lower and ExecuTorch's runtime does not register."""
    kernels, dispatched = registered_kernels(), set(torch._C._dispatch_get_all_op_names())
    for packet in (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)):
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, overload)
            types = {str(value.type) for value in op._schema.returns}
            if (
                op._schema.is_mutable
                or find(op)
                or "Tensor" not in types
                or op._schema.name.startswith("aten::_")
                or op.name() not in dispatched
            ):
                continue
            target = edge_operator(op)
            if isinstance(target, EdgeOpOverload) and kernel_of(target) not in kernels:
                yield target


def test_every_operator_without_a_kernel_is_reported_with_a_remedy() -> None:
    graph, count = torch.fx.Graph(), 0
    broken_up = set(core_aten_decompositions())  # asked itself, it makes its table anew for each operator
    for target in unlisted_operators():
        name = op_name(target)
        reason = without_kernel(graph.call_function(target))
        assert reason is not None, name
        assert reason.id in ("cpu.no_kernel", "cpu.no_out_variant") and name.split(".")[1] in reason.text
        if target._op in broken_up or target._op._can_decompose() or any(word in name for word in ELSEWHERE):
            continue  # ExecuTorch breaks it up, or no model has it
        assert OTHERS not in reason.remedy, name
        count += 1
    assert count > 100


class WithoutKernels(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(x)
        return (
            torch.linalg.det(y),
            torch.histc(y, 5, 0.0, 2.0),
            torch.mode(y)[0],
            torch.igamma(y + 1, y + 2),
        )


def test_a_report_names_operator_line_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    x = (torch.randn(4, 4),)
    spec = EthosUCompileSpec("ethos-u55-128")
    with caplog.at_level(logging.WARNING, logger="ethorch"):
        built = build_pte(quantize(UserModel(WithoutKernels().eval(), x), spec), x, spec)
    first = WithoutKernels.forward.__code__.co_firstlineno
    reports = {refusal.reason.text.split("::")[1].split(".")[0]: str(refusal) for refusal in built.partition.without_kernel}
    assert set(reports) == {"_linalg_det", "histc", "mode", "igamma"}
    for line, name in enumerate(("_linalg_det", "histc", "mode", "igamma"), first + 3):
        assert f"test_cpu_kernels.py:{line}" in reports[name], reports[name]
        assert instead_of(f"aten.{name}.default") in reports[name] and OTHERS not in reports[name]
        assert reports[name] in caplog.text


class Orders(nn.Module):
    """Sorts of up to 16 elements run on the NPU; longer ones, and those whose indices are read, become a topk."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(x) - x
        values, places = torch.sort(y, 0, True)
        return (
            values, places, torch.sort(y[:, :16])[0], torch.sort(y)[0], y.median(), *y.median(1), *y.kthvalue(3, 0, True),
            y.kthvalue(30)[0], torch.bucketize(y, torch.linspace(-1, 1, 9)), torch.quantile(y, 0.3, dim=1), y.argsort(1),
        )  # fmt: skip


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_orders_run(target: str) -> None:
    x = (torch.linspace(-1.5, 0, 6 * 40)[torch.randperm(240, generator=torch.Generator().manual_seed(0))].reshape(6, 40),)
    spec = EthosUCompileSpec(target)
    module = quantize(UserModel(Orders().eval(), x, [x]), spec)
    built = build_pte(module, x, spec)
    assert built.partition.without_kernel == []
    for number, (found, wanted) in enumerate(zip(runtime.load(built.pte)(*x), module(*x), strict=True)):
        if number in (1, 6, 8, 11):  # places: of equal codes any
            assert found.shape == wanted.shape and int(found.max()) == int(wanted.max())
        else:
            torch.testing.assert_close(found, wanted, rtol=0, atol=0.01)


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.rfft(self.conv(x))
        return torch.mode(torch.abs(z) + torch.angle(z))[0]  # an angle keeps complex tensors from becoming pairs


def test_the_root_of_refusals_and_missing_kernels_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    x = (torch.randn(1, 3, 18),)
    spec = EthosUCompileSpec("ethos-u55-128")
    model = UserModel(Spectrum().eval(), x)
    with caplog.at_level(logging.WARNING, logger="ethorch"):
        built = build_pte(quantize(model, spec), x, spec)
    (absolute,) = (refusal for refusal in built.partition.refusals if refusal.origin.target == "aten.abs.default")
    assert absolute.reason.id == "graph.input_not_quantized"
    assert "reads aten.fft_rfft.default" in absolute.reason.text and "[operator.unknown]" in absolute.reason.text
    assert "Quantize the module" not in absolute.reason.remedy and "matmul" in absolute.reason.remedy
    missing = {refusal.origin.target: refusal for refusal in built.partition.without_kernel}
    assert missing["aten.mode.default"].reason.id == "cpu.no_kernel"
    assert "test_cpu_kernels.py" in str(missing["aten.mode.default"]) and "torch.topk" in missing["aten.mode.default"].reason.remedy
    assert missing["aten._fft_r2c.default"].reason.id == "cpu.not_portable"
    assert "ExecuTorch has no CPU kernel aten::mode.values" in caplog.text
    assert "ExecuTorch has no CPU kernel aten::mode.values" in str(missing["aten.mode.default"])
    ids = {row["id"] for row in json.loads(json.dumps(built.partition.to_json()))["without_kernel"]}
    assert ids == {"cpu.no_kernel", "cpu.not_portable"}

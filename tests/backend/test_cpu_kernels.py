"""What stays on the CPU: whether ExecuTorch has a kernel for it, and which refusal is the root of others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from torch import Tensor, nn

from ethorch import flow, host
from ethorch.backend.cpu_kernels import TAKE_COMPLEX, without_kernel
from ethorch.model_files import UserModel
from ethorch.report import build as report
from ethorch.target.compile_spec import EthosUCompileSpec


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
        (lambda z: torch.exp(z).abs(), Z, {"cpu.complex"}),
        (lambda z: (z * 2.0).abs(), Z, {"cpu.complex"}),
        (lambda z: (z - z[0]).abs(), Z, {"cpu.complex"}),
    ],
    ids=[
        "topk",
        "portable",
        "pow",
        "no out variant",
        "sort",
        "rfft",
        "fft",
        "complex exp",
        "complex by a number",
        "complex broadcast",
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
    names = {op._schema.name.split("::")[1] for op in called if op is not None}
    assert names <= TAKE_COMPLEX and names >= TAKE_COMPLEX - {"squeeze_copy"}
    found = host.load(edge.to_executorch().buffer)(X, Z)
    for mine, wanted in zip(found, everything(X, Z), strict=True):
        torch.testing.assert_close(mine, wanted)


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.rfft(self.conv(x))
        return torch.sort(torch.abs(z) + torch.angle(z))[0]  # an angle keeps complex tensors from becoming pairs


def test_the_root_of_refusals_and_missing_kernels_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    x = (torch.randn(1, 3, 18),)
    spec = EthosUCompileSpec("ethos-u55-128")
    model = UserModel(Spectrum().eval(), x)
    with caplog.at_level(logging.WARNING, logger="ethorch"):
        built = flow.build(flow.quantize(model, spec), x, spec)
    (absolute,) = (refusal for refusal in built.partition.refusals if refusal.origin.target == "aten.abs.default")
    assert absolute.reason.id == "graph.input_not_quantized"
    assert "comes from aten.fft_rfft.default" in absolute.reason.text and "[operator.unknown]" in absolute.reason.text
    assert "Quantize the module" not in absolute.reason.way_out and "matmul" in absolute.reason.way_out
    missing = {refusal.origin.target: refusal for refusal in built.partition.without_kernel}
    assert missing["aten.sort.default"].reason.id == "cpu.no_kernel"
    assert (
        "test_cpu_kernels.py" in str(missing["aten.sort.default"]) and "torch.topk" in missing["aten.sort.default"].reason.way_out
    )
    assert missing["aten._fft_r2c.default"].reason.id == "cpu.not_portable"
    assert "ExecuTorch has no CPU kernel aten::sort.values" in caplog.text
    assert "ExecuTorch has no CPU kernel aten::sort.values" in report.to_text(built)
    ids = {row["id"] for row in json.loads(json.dumps(report.to_json(built)))["without_kernel"]}
    assert ids == {"cpu.no_kernel", "cpu.not_portable"}

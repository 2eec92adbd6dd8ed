"""Lowering once more without what Vela declined, and leaving ExecuTorch as it was for everybody else."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any, final

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch import nn

from ethorch import EthosUCompileSpec, EthosUPartitioner, runtime, vela
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config
from ethorch.backend import retry
from ethorch.backend.build import build_pte
from ethorch.lower.rewrite import pipeline
from ethorch.support.errors import VelaError
from ethorch.targets.npus import LIMITS
from ethorch.tosa.limits import Limits
from ethorch.vela import arena, compiler
from ethorch.vela.compiled_model import CompiledModel
from tests.backend.test_partitioner import SPEC, steps
from tests.helpers.quantized import lower, quantized


class Pooled(nn.Module):
    """U55 has no average over a padded window of 9x9."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = nn.functional.avg_pool2d(x, 9, 1, 4, count_include_pad=False)
        return self.last(x)


def test_what_vela_refuses_goes_to_the_cpu(monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(LIMITS["u55"], "AVG_POOL2D", Limits())  # a limit too loose, so that Vela really refuses
    inputs = (torch.randn(1, 3, 16, 16),)
    module = quantized(Pooled(), [inputs]).module
    partitioner = EthosUPartitioner(SPEC)
    with caplog.at_level(logging.WARNING, "ethorch"):
        program = runtime.load(lower(module, inputs, partitioner))
    assert len(program.delegates) == 2
    assert steps(program(*inputs)[0], module, inputs) <= 2.01
    (refusal,) = partitioner.report.refusals
    assert (refusal.reason.id, refusal.origin.target) == ("vela.refused", "aten.avg_pool2d.default")
    assert refusal.origin.source.startswith("test_retry.py:")
    assert partitioner.report.npu_operators == 2 + 1  # two convolutions and relu, each counted once
    assert "lowered again with these operators on the CPU: aten.avg_pool2d.default" in caplog.text


class Gathered(nn.Module):
    """As many runs of indices as take a GATHER, which U55 does not have; a partitioner sees zeros, which are few runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("index", torch.randint(0, 12, (1, 12, 12, 8), generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.gather(1, self.index)


def test_what_a_delegates_lowering_refuses_goes_to_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    inputs = (torch.randn(1, 12, 12, 8),)
    module = quantized(Gathered(), [inputs]).module
    with caplog.at_level(logging.WARNING, "ethorch"):
        build = build_pte(module, inputs, EthosUCompileSpec("ethos-u55-128"))
    assert [refusal.reason.id for refusal in build.partition.refusals] == ["GATHER.absent"]
    assert "lowered again with these operators on the CPU: aten.gather.default" in caplog.text
    assert steps(runtime.load(build.pte)(*inputs)[0], module, inputs) == 0


def test_what_vela_refuses_is_broken_up_for_the_cpu(monkeypatch) -> None:
    """The CPU has no conv2d: only what ExecuTorch makes of it."""
    steps_left = tuple(step for step in pipeline.PIPELINE if getattr(step, "name", "") != "split transposes")
    monkeypatch.setattr(pipeline, "PIPELINE", steps_left)  # so that Vela really refuses
    inputs = (torch.randn(1, 3, 257, 256),)
    module = quantized(nn.Sequential(nn.Conv2d(3, 2, 3, 2), nn.Hardswish(), nn.AdaptiveAvgPool2d(4)), [inputs]).module
    partitioner = EthosUPartitioner(SPEC)
    program = runtime.load(lower(module, inputs, partitioner))
    assert len(program.delegates) == 1
    assert steps(program(*inputs)[0], module, inputs) <= 2.01
    refused = {refusal.origin.target: refusal for refusal in partitioner.report.refusals}
    assert refused["aten.convolution.default"].reason.id == "vela.refused"
    assert refused["aten.convolution.default"].origin.module == "0"


class Products(nn.Module):
    """On U55 a product of int16 is some 160 commands of each of the second matrix's columns."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = torch.tanh(torch.bmm(x, y))
        return a + torch.sigmoid(torch.bmm(x + 1, y)) * torch.bmm(x, torch.relu(y))


@pytest.mark.parametrize(
    ("most", "delegates", "refused"),
    [*(pytest.param(*row, marks=pytest.mark.long) for row in ((90_000, 1, 0), (36_000, 3, 0))), (12_000, 2, 3)],
)
def test_too_many_commands(monkeypatch, most: int, delegates: int, refused: int) -> None:
    """More delegates where each operator is short enough; what is too long by itself goes to the CPU, with a way out.

    16 MiB of commands take Vela minutes; so a lower limit, in its words.
    """

    def limited(tosa: bytes, spec: EthosUCompileSpec, **options: Any) -> CompiledModel:
        model = compiler.compile(tosa, spec, **options)
        if len(model.command_stream) > most:
            raise VelaError(
                "Vela rejected the graph: The command stream exceeds the hardware limit of 16 MiB (current size: 17.00 MiB)"
            )
        return model

    monkeypatch.setattr(arena, "compile", limited)
    monkeypatch.setattr(vela, "compile", limited)
    inputs = (torch.rand(2, 5, 4) - 0.4, torch.rand(2, 4, 30) - 0.3)
    module = quantized(Products(), [inputs], get_symmetric_a16w8_quantization_config()).module
    partitioner = EthosUPartitioner(SPEC)
    program = runtime.load(lower(module, inputs, partitioner))
    found = partitioner.report.refusals
    assert (len(program.delegates), len(found)) == (delegates, refused)
    assert all(refusal.reason.id == "vela.stream" for refusal in found)
    torch.testing.assert_close(program(*inputs)[0], module(*inputs), rtol=0, atol=3e-4)


class Stacked(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([x, y], 1)


class PooledAlong(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_max_pool1d(x, 4)


@pytest.mark.parametrize(
    ("module", "shapes", "dtype"),
    [
        pytest.param(Stacked(), [(2, 20_000)] * 2, torch.int32, marks=pytest.mark.long),
        (Stacked(), [(2, 65_537)] * 2, torch.float32),
        (PooledAlong(), [(1, 65_537, 2)], torch.float32),
    ],
    ids=["stack of int32", "stack", "adaptive_max_pool1d"],
)
def test_what_is_broken_up_has_no_views(monkeypatch, module, shapes, dtype) -> None:
    """ExecuTorch's CPU has no view and no squeeze, but copies; the program's output may be among what is broken up."""
    steps_left = tuple(step for step in pipeline.PIPELINE if getattr(step, "name", "") != "split transposes")
    monkeypatch.setattr(pipeline, "PIPELINE", steps_left)  # so that Vela really refuses
    inputs = tuple((100 * torch.rand(shape)).to(dtype) for shape in shapes)
    module = quantized(module, [inputs]).module
    partitioner = EthosUPartitioner(SPEC)
    program = runtime.load(lower(module, inputs, partitioner))
    assert partitioner.report.refusals
    torch.testing.assert_close(program(*inputs)[0], module(*inputs), rtol=0, atol=1e-6)


def test_what_vela_refuses_is_compiled_once_otherwise(monkeypatch) -> None:
    calls: list[bytes] = []
    compile_ = compiler.compile
    monkeypatch.setattr(arena, "compile", lambda tosa, *rest: calls.append(tosa) or compile_(tosa, *rest))
    inputs = (torch.randn(1, 3, 8, 8),)
    module = quantized(nn.Conv2d(3, 4, 1), [inputs]).module
    lower(module, inputs, EthosUPartitioner(SPEC))
    assert len(calls) == 1


@final
class Nothing(BackendDetails):
    """A backend of somebody else: it takes everything and writes one byte."""

    @staticmethod
    def preprocess(edge_program: torch.export.ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"!")


@final
class NothingPartitioner(Partitioner):
    def partition(self, exported_program: torch.export.ExportedProgram) -> PartitionResult:
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        return PartitionResult(exported_program, {"all": DelegationSpec("Nothing", [])})


def test_other_backends_lower_as_before() -> None:
    inputs = (torch.randn(1, 3, 8, 8),)
    EthosUPartitioner(SPEC)
    lower(quantized(nn.Conv2d(3, 4, 1), [inputs]).module, inputs, EthosUPartitioner(SPEC))
    edge = to_edge_transform_and_lower(torch.export.export(nn.ReLU(), inputs), partitioner=[NothingPartitioner()])
    calls = [node for node in edge.exported_program().graph.nodes if "call_delegate" in str(node.target)]
    assert len(calls) == 1
    assert b"Nothing" in edge.to_executorch().buffer


def test_to_backend_is_wrapped_once() -> None:
    EthosUPartitioner(SPEC)
    forms = (torch.export.ExportedProgram, MethodProgramsPartitionerSpec)
    before = [to_backend.dispatch(form) for form in forms]
    EthosUPartitioner(SPEC)
    retry.install()
    assert [to_backend.dispatch(form) for form in forms] == before


def test_importing_ethorch_changes_nothing() -> None:
    """Every module of it, with the packages that it imports there already."""
    script = """
import importlib, logging, pkgutil, signal, sys, warnings
import torch, torchao.quantization.pt2e.quantize_pt2e, executorch.exir, executorch.kernels.quantized, executorch.runtime
from executorch.exir.backend.backend_api import to_backend
import ethosu.regor, tosa_serializer
for optional in ("model_explorer", "scipy.special", "scipy.sparse"):
    try:
        importlib.import_module(optional)
    except ImportError:
        pass

def state():
    ethorchs = {name: (logger.handlers, logger.level) for name, logger in logging.root.manager.loggerDict.items()
                if name.startswith("ethorch") and isinstance(logger, logging.Logger)}
    return (dict(to_backend.registry), logging.root.handlers[:], logging.root.level, sys.unraisablehook, sys.excepthook,
            signal.getsignal(signal.SIGINT), warnings.filters[:]), ethorchs

before, _ = state()
import ethorch
for module in pkgutil.walk_packages(ethorch.__path__, "ethorch."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # of an extra that is not installed
        assert error.name in ("transformers", "tokenizers", "model_explorer"), error
after, loggers = state()
for old, new in zip(before, after):
    assert old == new, (old, new)
assert "ethorch.backend.retry" in loggers
assert all(found == ([], logging.NOTSET) for found in loggers.values()), loggers
print("nothing changed")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("nothing changed"), done.stderr

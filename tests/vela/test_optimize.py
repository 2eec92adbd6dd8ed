"""Streams that cannot be optimized, and passes whose results are rejected."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

import ethorch
from ethorch.npu.cycles import list_traffic
from ethorch.npu.cycles.model import rate_operators
from ethorch.npu.cycles.traffic import WRITE
from ethorch.npu.ir import Stream, decode
from ethorch.npu.passes import pipeline
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import Pass
from ethorch.program.program import Program, record_of
from ethorch.support.errors import MachineFault
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates
from ethorch.targets.npus import TARGETS
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.vela import optimize
from ethorch.vela.delegate import adapt_tuning


def compile_with(stream: str) -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4))
    return ethorch.compile(
        model.eval(), torch.randn(1, 3, 8, 8), "ethos-u55-128", settings=ethorch.Settings(stream=stream), progress=False
    )


def shorten_weights(stream: Stream, context: Context) -> Stream:
    """Shorten the weight stream of the last convolution."""
    ops = list(stream.ops)
    last = max(position for position, op in enumerate(ops) if op.name == "NPU_OP_CONV")
    ops[last] = ops[last].copy(WEIGHT_LENGTH=ops[last].registers["WEIGHT_LENGTH"] - 16)
    return replace(stream, ops=ops)


def misplace_output(stream: Stream, context: Context) -> Stream:
    """Write the result of the first convolution to an address that is not aligned."""
    ops = list(stream.ops)
    first = min(position for position, op in enumerate(ops) if op.name == "NPU_OP_CONV")
    ops[first] = ops[first].copy(OFM_BASE0=ops[first].registers["OFM_BASE0"] + 1)
    return replace(stream, ops=ops)


@pytest.mark.parametrize("run", [shorten_weights, misplace_output])
def test_a_rejected_pass_is_omitted(run: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    expected = record_of(compile_with("vela")).payloads
    passes = (Pass("allocation", run),)  # type: ignore[arg-type]
    monkeypatch.setattr(optimize, "optimize", lambda *arguments: pipeline.optimize(*arguments, passes))
    with caplog.at_level(logging.WARNING, "ethorch"):
        program = compile_with("optimized")
    assert "[stream.rejected]" in caplog.text and "pass allocation" in caplog.text
    assert [payload.commands for payload in record_of(program).payloads] == [payload.commands for payload in expected]


def test_other_passes_remain_if_one_is_rejected(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    expected = record_of(compile_with("block-sizes")).payloads
    blocks = next(stage for stage in pipeline.PIPELINE if stage.name == "block-sizes")
    passes = (blocks, Pass("allocation", misplace_output))
    monkeypatch.setattr(optimize, "optimize", lambda *arguments: pipeline.optimize(*arguments, passes))
    with caplog.at_level(logging.WARNING, "ethorch"):
        program = compile_with("optimized")
    assert caplog.text.count("[stream.rejected]") == caplog.text.count("pass allocation") == 1
    assert [payload.commands for payload in record_of(program).payloads] == [payload.commands for payload in expected]


def test_a_stream_that_cannot_be_decoded_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    expected = record_of(compile_with("vela")).payloads

    def fail(*_: object) -> None:
        raise MachineFault("NPU_OP_BRANCH has no representation")

    monkeypatch.setattr(optimize, "optimize", fail)
    with caplog.at_level(logging.WARNING, "ethorch"):
        program = compile_with("optimized")
    assert "stream" not in caplog.text
    assert [payload.commands for payload in record_of(program).payloads] == [payload.commands for payload in expected]


class Upsampling(nn.Module):
    """float[1, 3, 48, 48] -> float[1, 16, 96, 96], which runs part by part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.larger = nn.Conv2d(3, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.skip = nn.Conv2d(3, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.larger(nn.functional.leaky_relu(self.first(x)))
        return torch.sigmoid(torch.cat([y, nn.functional.interpolate(self.skip(x), scale_factor=2)], 1))


NETWORKS = {
    "equal names": (lambda: nn.GRU(16, 16, 2, bidirectional=True, batch_first=True), (1, 5, 16), "ethos-u85-256", "int8"),
    "parts": (Upsampling, (1, 3, 48, 48), "ethos-u55-128", "a16w8"),
    "replaced products": (lambda: nn.TransformerEncoderLayer(32, 4, 32, batch_first=True), (1, 32, 32), "ethos-u55-128", "int8"),
}


@pytest.mark.parametrize("name", [*NETWORKS][:2] + [pytest.param("replaced products", marks=pytest.mark.long)])
def test_each_operator_changes_by_what_passes_save(name: str) -> None:
    create, shape, target, scheme = NETWORKS[name]
    torch.manual_seed(0)
    model, samples = create().eval(), [torch.randn(shape).cumsum(2) / 4 for _ in range(4)]
    programs = [
        ethorch.compile(
            model,
            samples[0],
            target,
            calibration=samples,
            settings=ethorch.Settings(target, scheme=scheme, stream=stream),
            progress=False,
        )
        for stream in ("vela", "optimized")
    ]
    before, after = (program.to_json() for program in programs)
    saved = sum(row["cycles_before"] - row["cycles_after"] for row in after["stream_passes"])
    assert after["stream_passes"] and before["total_cycles"] - after["total_cycles"] == saved
    for old, new in zip(*(record_of(program).layers for program in programs), strict=True):
        assert new.cycles <= 1.5 * old.cycles + 200, (old.operators, old.cycles, new.cycles)


@pytest.mark.parametrize(
    "spec",
    [EthosUCompileSpec("ethos-u55-128"), EthosUCompileSpec("ethos-u85-256", "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB")],
    ids=lambda spec: spec.target.name,
)
def test_layers_access_the_memories_as_the_optimized_stream_does(spec: EthosUCompileSpec) -> None:
    torch.manual_seed(0)
    settings = ethorch.Settings(
        system_config=spec.system_config, memory_mode=spec.memory_mode, stream="vela", verify=False, arena="free"
    )
    model, x = nn.GRU(16, 16, 2, bidirectional=True, batch_first=True).eval(), torch.randn(1, 5, 16)
    record = record_of(ethorch.compile(model, x, spec.target.name, settings=settings, progress=False))
    compiled = optimize.optimize_model(record.build.delegates[0].compiled, spec)  # type: ignore[union-attr]
    assert compiled.before_passes is not None
    changes: Counter[tuple[str, str]] = Counter()
    for sign, part in ((1, compiled), (-1, compiled.before_passes)):
        header, rows = part.tables["perf_debug"]
        for name, way in product(("Sram", "Dram", "OffChipFlash"), ("read", "write")):
            columns = [column for column in header if column.startswith(name) and column.endswith(f"_{way}")]
            changes[name, way] += sign * sum(int(row[header.index(column)] or 0) for column in columns for row in rows)
        stream, regions = decode(part.command_stream, optimize.read_image(part)), read_memory_rates(spec)
        for _, access in list_traffic(stream, regions, rate_operators(stream, regions)):
            changes[access.memory.name, "write" if access.channel == WRITE else "read"] -= sign * access.size_bytes
    assert max(map(abs, changes.values())) <= 128  # Vela's rows do not contain all accesses of a chain
    assert compiled.tables["perf_debug"] != compiled.before_passes.tables["perf_debug"]


def test_copies_of_repeated_weights_do_not_delay_the_first_layers() -> None:
    torch.manual_seed(0)
    settings = ethorch.Settings(system_config="Ethos_U85_SYS_DRAM_Mid", memory_mode="Dedicated_Sram_384KB", verify=False)
    model, x = nn.GRU(20, 64, batch_first=True).eval(), torch.randn(1, 8, 20)
    program = ethorch.compile(model, x, "ethos-u85-256", settings=settings, progress=False)
    compiled = record_of(program).build.delegates[0].compiled  # type: ignore[union-attr]
    ops = decode(compiled.command_stream, optimize.read_image(compiled)).ops
    sizes = [op.registers["DMA0_LEN"] for op in ops if op.is_dma]
    assert max(sizes) > 8192 and sizes.index(max(sizes)) > 0


@pytest.mark.parametrize(
    ("memory_mode", "stream", "layers"),
    [("Dedicated_Sram_384KB", "optimized", 3), ("Dedicated_Sram_384KB", "vela", 2), ("Sram_Only", "optimized", 2)],
)
def test_slices_of_a_classifier_read_weights_from_two_memories(memory_mode: str, stream: str, layers: int) -> None:
    """While a kernel reads the weights of a slice from DRAM, the weights of another slice are copied to SRAM."""
    torch.manual_seed(0)
    settings = ethorch.Settings(system_config="Ethos_U85_SYS_DRAM_Mid", memory_mode=memory_mode, stream=stream)
    model = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 1024))
    program = ethorch.compile(model.eval(), torch.randn(1, 512), "ethos-u85-256", settings=settings, progress=False)
    compiled = record_of(program).build.delegates[0].compiled  # type: ignore[union-attr]
    kernels = [op for op in decode(compiled.command_stream, optimize.read_image(compiled)).ops if op.name == "NPU_OP_CONV"]
    assert len(kernels) == layers


@pytest.mark.parametrize(
    ("memory_mode", "arena", "grows"),
    [("Dedicated_Sram_384KB", "free", True), ("Dedicated_Sram_384KB", 65536, False), ("Shared_Sram", "free", False)],
)
def test_only_dedicated_memory_grows(memory_mode: str, arena: str | int, grows: bool) -> None:
    spec = EthosUCompileSpec("ethos-u85-256", "Ethos_U85_SYS_DRAM_Mid", memory_mode, arena=arena)
    settings = ethorch.Settings(system_config="Ethos_U85_SYS_DRAM_Mid", memory_mode=memory_mode, stream="vela", verify=False)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    program = ethorch.compile(model.eval(), torch.randn(1, 64), "ethos-u85-256", settings=settings, progress=False)
    compiled = record_of(program).build.delegates[0].compiled  # type: ignore[union-attr]
    context = optimize._context(compiled, spec, frozenset())
    assert context.grown_limits == ({2: 384 << 10} if grows else {})


def test_memory_of_unknown_size_does_not_grow(tmp_path: Path) -> None:
    ini = tmp_path / "own.ini"
    ini.write_text(
        "[System_Config.Own]\ncore_clock=1e9\naxi0_port=Sram\naxi1_port=Dram\nSram_clock_scale=1.0\nDram_clock_scale=0.5\n"
        "[Memory_Mode.Own]\nconst_mem_area=Axi1\narena_mem_area=Axi1\ncache_mem_area=Axi0\n"
    )
    spec = EthosUCompileSpec("ethos-u85-256", "Own", "Own", config_ini=str(ini))
    compiled = record_of(compile_with("vela")).build.delegates[0].compiled  # type: ignore[union-attr]
    staged = replace(compiled, scratch_fast_bytes=1024)
    assert optimize._context(staged, spec, frozenset()).grown_limits == {}


def test_graphs_have_slices_only_if_streams_transfer_them() -> None:
    tuning, dedicated = TARGETS["ethos-u85-256"].tuning, ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB")
    assert adapt_tuning(tuning, EthosUCompileSpec("ethos-u85-256", *dedicated)) is tuning
    others = (
        EthosUCompileSpec("ethos-u85-256"),
        EthosUCompileSpec("ethos-u85-256", *dedicated, stream="vela"),
        TosaCompileSpec("TOSA-1.0+INT"),
    )
    assert [adapt_tuning(tuning, spec).split_weights for spec in others] == [None] * 3

"""Weights that are read several times in a call, copied into SRAM once: the same bits, fewer cycles, all else as it was."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.npu import Program
from ethorch.quantization.calibrate import quantize
from ethorch.support.errors import SpecError
from ethorch.targets.settings import Settings
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.resident import is_unchanged, with_resident_weights
from tests.helpers.compiling import compile_with
from tests.helpers.tosa_runs import run_compiled

SPEC = EthosUCompileSpec("ethos-u55-128")


class Steps(nn.Module):
    """float[1, 8, 32] -> float[1, 48]: a recurrent layer over eight steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.recurrent, self.head = nn.GRU(32, 48, batch_first=True), nn.Linear(48, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


SAMPLES = [torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(seed)).cumsum(-1) / 6 for seed in range(4)]


@pytest.fixture(scope="module")
def quantized() -> nn.Module:
    return quantize(UserModel(Steps().eval(), (SAMPLES[0],), [(x,) for x in SAMPLES]), SPEC)


@pytest.fixture(scope="module")
def model(quantized: nn.Module) -> CompiledModel:
    (delegate,) = build_pte(quantized, (SAMPLES[0],), SPEC).delegates
    return delegate.compiled


def test_the_same_bits_in_fewer_cycles(model: CompiledModel) -> None:
    found = with_resident_weights(model, SPEC, 1 << 20)
    assert found.performance.total_cycles < 0.7 * model.performance.total_cycles
    assert found.constants == model.constants and found.inputs == model.inputs and found.outputs == model.outputs
    codes = [np.random.default_rng(1).integers(-128, 128, tensor.nbytes).astype(np.int8) for tensor in model.inputs]
    wanted = run_compiled(model, codes)
    for result, right in zip(run_compiled(found, codes, checks=("uninitialized", "overlap")), wanted, strict=True):
        assert np.array_equal(result, right)


def test_all_other_registers_are_as_they_were(model: CompiledModel) -> None:
    found = with_resident_weights(model, SPEC, 1 << 20)
    before, after = (list(Program(each.command_stream, each.constants).operations()) for each in (model, found))
    assert len(after) > len(before) and is_unchanged(before, after)
    copies = after[: len(after) - len(before)]
    assert {op.name for op in copies} == {"NPU_OP_DMA_START", "NPU_OP_DMA_WAIT"} and copies[-1].name == "NPU_OP_DMA_WAIT"
    assert not is_unchanged(before, [*after[:-2], after[-1], after[-2]])


def test_the_schedule_follows_the_stream(model: CompiledModel) -> None:
    found = with_resident_weights(model, SPEC, 1 << 20)
    assert sum(row.op_cycles for row in found.rows()) == found.performance.total_cycles
    offsets = {op.offset for op in Program(found.command_stream, found.constants).operations()}
    assert all(offset in offsets for row in found.rows() for offset in row.command_offsets)
    assert [row.name for row in found.rows()] == [row.name for row in model.rows()]


def test_no_more_room_is_taken_than_there_is(model: CompiledModel) -> None:
    whole = with_resident_weights(model, SPEC, 1 << 20)
    grown = whole.scratch_bytes - model.scratch_bytes
    assert 0 < grown <= 48 * 48 * 3 * 1.2 + 16
    assert with_resident_weights(model, SPEC, grown).command_stream == whole.command_stream
    assert with_resident_weights(model, SPEC, grown - 32) is model


def test_nothing_is_done_where_nothing_is_gained(model: CompiledModel, quantized: nn.Module) -> None:
    in_sram = EthosUCompileSpec("ethos-u55-128", memory_mode="Sram_Only")
    staged = replace(model, scratch_fast_bytes=4096)
    assert with_resident_weights(model, in_sram, 1 << 20) is model
    assert with_resident_weights(staged, SPEC, 1 << 20) is staged
    other = EthosUCompileSpec("ethos-u55-128", extra_flags="--cop-format=COP2")
    (delegate,) = build_pte(quantized, (SAMPLES[0],), other).delegates
    assert delegate.compiled.command_stream[:4] == b"COP2"
    assert with_resident_weights(delegate.compiled, other, 1 << 20) is delegate.compiled
    once = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    graph = quantize(UserModel(once, (SAMPLES[0][0],), [(x[0],) for x in SAMPLES]), SPEC)
    (delegate,) = build_pte(graph, (SAMPLES[0][0],), SPEC).delegates
    assert with_resident_weights(delegate.compiled, SPEC, 1 << 20) is delegate.compiled


def compiled(**settings: object) -> ethorch.Program:
    return compile_with(Steps().eval(), SAMPLES[0], "ethos-u55-128", calibration=SAMPLES, **settings)


def test_auto_takes_what_the_ram_allows() -> None:
    flash, sram, some = compiled(), compiled(constants="sram"), compiled(constants="16K")
    assert flash.memory.ram_bytes < some.memory.ram_bytes < sram.memory.ram_bytes
    assert (sram.estimate.milliseconds or 0) < (some.estimate.milliseconds or 0) < 0.7 * (flash.estimate.milliseconds or 0)
    auto = compiled(constants="auto", ram=some.memory.ram_bytes)
    assert auto.budgets.met and auto.settings is not None and isinstance(auto.settings.constants, int)
    assert auto.estimate.npu_cycles == some.estimate.npu_cycles and auto.budgets.attempts[-1].change.endswith("read several times")
    assert Settings.from_json(auto.settings.to_json()) == auto.settings == Settings.from_toml(auto.settings.to_toml())
    for x in SAMPLES:
        assert torch.equal(auto(x), flash(x)) and torch.equal(sram(x), flash(x))
    assert auto.compare(SAMPLES[1]).bit_exact


def test_the_wish_is_in_the_spec() -> None:
    spec = Settings(constants="16K").spec
    assert spec.resident_bytes == 16384 and EthosUCompileSpec.from_list(spec.to_list()) == spec
    assert copy.copy(spec) == spec != SPEC
    with pytest.raises(SpecError, match="resident_bytes"):
        EthosUCompileSpec("ethos-u55-128", resident_bytes=-1)
    with pytest.raises(SpecError, match="memory of the constants"):
        Settings(constants="srm")

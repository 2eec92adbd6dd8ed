"""Weights that a program copies to SRAM because it reads them several times."""

from __future__ import annotations

import copy
import functools

import pytest
import torch

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.support.errors import SpecError
from ethorch.targets.compile_spec import RESIDENT_BYTES
from ethorch.targets.settings import Settings
from tests.helpers.compiling import compile_with
from tests.npu.verify.streams import Steps

SAMPLES = [torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(seed)).cumsum(-1) / 6 for seed in range(4)]


@functools.cache
def compile_steps(**settings: object) -> ethorch.Program:
    torch.manual_seed(4)
    return compile_with(Steps().eval(), SAMPLES[0], "ethos-u55-128", calibration=SAMPLES, **settings)


def test_the_default_is_limited_by_the_arena() -> None:
    default, none = compile_steps(), compile_steps(constants=0)
    assert none.memory.ram_bytes < default.memory.ram_bytes <= none.memory.ram_bytes + RESIDENT_BYTES
    assert (default.estimate.milliseconds or 0) < 0.7 * (none.estimate.milliseconds or 0)
    arena = max(delegate.payload.scratch_bytes for delegate in none.delegates)
    limited = compile_steps(arena=arena)
    assert limited.memory.ram_bytes == none.memory.ram_bytes
    for x in SAMPLES:
        assert torch.equal(default(x), none(x)) and torch.equal(limited(x), none(x))
    assert default.compare(SAMPLES[1]).bit_exact
    (delegate,) = compile_steps(stream="vela").delegates
    assert delegate.payload.scratch_bytes == arena


def test_auto_uses_the_available_ram() -> None:
    none, sram, some = compile_steps(constants=0), compile_steps(constants="sram"), compile_steps(constants="16K")
    assert none.memory.ram_bytes < some.memory.ram_bytes < sram.memory.ram_bytes
    assert (sram.estimate.milliseconds or 0) < (some.estimate.milliseconds or 0) < 0.7 * (none.estimate.milliseconds or 0)
    auto = compile_steps(constants="auto", ram=some.memory.ram_bytes)
    assert auto.budgets.met and auto.settings is not None and isinstance(auto.settings.constants, int)
    assert auto.estimate.npu_cycles == some.estimate.npu_cycles and auto.budgets.attempts[-1].change.endswith("read several times")
    assert Settings.from_json(auto.settings.to_json()) == auto.settings == Settings.from_toml(auto.settings.to_toml())
    for x in SAMPLES:
        assert torch.equal(auto(x), none(x)) and torch.equal(sram(x), none(x))


def test_a_ram_limit_excludes_copies() -> None:
    none = compile_steps(constants=0)
    limited = compile_steps(ram=none.memory.ram_bytes)
    assert limited.budgets.met and limited.memory.ram_bytes == none.memory.ram_bytes
    assert limited.settings is not None and limited.settings.constants == 0
    assert [attempt.change for attempt in limited.budgets.attempts] == ["", "no copies of weights"]


def test_the_search_keeps_a_requested_size() -> None:
    none = compile_steps(constants=0)
    limited = compile_steps(ram=none.memory.ram_bytes, constants="16K")
    assert limited.budgets.met and limited.settings is not None and limited.settings.constants == 16 << 10
    assert all("copies" not in attempt.change for attempt in limited.budgets.attempts)


def test_an_exploration_of_arenas_excludes_copies() -> None:
    none = compile_steps(constants=0)
    torch.manual_seed(4)
    settings = Settings(ram=none.memory.ram_bytes)
    vary = {"arena": ["free"], "target": ["ethos-u55-128"]}
    found = ethorch.explore(Steps().eval(), SAMPLES[0], vary=vary, calibration=SAMPLES, settings=settings, progress=False)
    assert [(variant.fits, variant.searched["constants"]) for variant in found.variants] == [(True, 0)]


def test_the_spec_contains_the_limit() -> None:
    default = EthosUCompileSpec("ethos-u55-128")
    assert Settings().spec.resident_bytes == default.resident_bytes == RESIDENT_BYTES
    for constants, size in ((0, 0), ("16K", 16384)):
        spec = Settings(constants=constants).spec
        assert spec.resident_bytes == size and EthosUCompileSpec.from_list(spec.to_list()) == spec
        assert copy.copy(spec) == spec != default
    with pytest.raises(SpecError, match="resident_bytes"):
        EthosUCompileSpec("ethos-u55-128", resident_bytes=-1)
    with pytest.raises(SpecError, match="memory for constants"):
        Settings(constants="srm")

"""Budgets that do not hold at once: what is tried, what is taken, and that the results stay those of the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.program.program import record_of
from ethorch.report.advice import advice
from ethorch.support.errors import SpecError
from ethorch.targets.settings import Settings


class Wide(nn.Module):
    """Maps that are large at the front: their sizes, not the weights, take the RAM."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.b, self.c = nn.Conv2d(24, 48, 3, padding=1), nn.Conv2d(48, 48, 3, padding=1, stride=2)
        self.d = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(torch.relu(self.c(torch.relu(self.b(torch.relu(self.a(x)))))).mean((2, 3)))


class Dense(nn.Sequential):
    """Weights that are read once each: they wait for flash."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    torch.manual_seed(2)
    return [nn.functional.interpolate(torch.rand(1, 3, 8, 8), (96, 96), mode="bilinear") for _ in range(4)]


@pytest.fixture(scope="module")
def vectors() -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(1, 256).cumsum(-1) / 8 for _ in range(4)]


def wide(images: list[Tensor], **settings: Any) -> ethorch.Program:
    chosen = Settings("ethos-u55-128").with_(**settings)
    return ethorch.compile(Wide().eval(), images[0], calibration=images, settings=chosen)


def dense(vectors: list[Tensor], **settings: Any) -> ethorch.Program:
    chosen = Settings("ethos-u55-128").with_(**settings)
    return ethorch.compile(Dense().eval(), vectors[0], calibration=vectors, settings=chosen)


def test_budgets_that_hold_are_tried_once(images: list[Tensor]) -> None:
    program = wide(images, ram="1M", flash="1M")
    (only,) = program.budgets.attempts
    assert program.budgets.met and only.change == "" and only.fits and only.ram_bytes == program.memory.ram_bytes
    assert program.to_json()["tried"][0]["milliseconds"] == program.estimate.milliseconds


def test_a_limit_of_ram_is_kept_by_a_smaller_arena(images: list[Tensor]) -> None:
    fast = wide(images, arena="fast")
    limit = fast.memory.ram_bytes - 60_000
    program = wide(images, ram=limit, arena="fast")
    assert not program.budgets.attempts[0].fits and program.budgets.met and program.memory.ram_bytes <= limit
    assert program.settings is not None and isinstance(program.settings.arena, int)
    assert (program.estimate.milliseconds or 0) >= (fast.estimate.milliseconds or 0)
    assert torch.equal(program(images[1]), fast(images[1]))


def test_a_limit_that_cannot_hold_gives_the_smallest_and_says_so(images: list[Tensor]) -> None:
    program = wide(images, ram="64K")
    assert not program.budgets.met and program.memory.ram_bytes == min(attempt.ram_bytes for attempt in program.budgets.attempts)
    assert len(program.budgets.attempts) == 2, "nothing below Vela's smallest arena is asked for"


def test_limits_below_the_inputs_are_reported_without_a_search(vectors: list[Tensor], caplog: pytest.LogCaptureFixture) -> None:
    program = dense(vectors, ram=8)
    assert not program.budgets.met and len(program.budgets.attempts) == 1
    assert "RAM limit of 8 bytes, because the inputs require at least 256 bytes" in caplog.text


def test_worse_figures_of_a_missed_budget_are_reported(vectors: list[Tensor], caplog: pytest.LogCaptureFixture) -> None:
    program = dense(vectors, ram="1M", latency_ms=1e-6)
    first, *_, last = program.budgets.attempts
    assert not program.budgets.met and last.ram_bytes > first.ram_bytes
    assert f"RAM {first.ram_bytes:,} to {program.memory.ram_bytes:,} bytes" in caplog.text and "[budget.traded]" in caplog.text


def test_an_arena_that_does_not_hold_is_said(images: list[Tensor], caplog: pytest.LogCaptureFixture) -> None:
    wide(images, arena="1M")
    wide(images, ram="64K")
    assert "[arena.exceeded]" not in caplog.text, "a search for the RAM says it by its budget"
    program = wide(images, arena="4K")
    assert (
        f"the NPU's arena requires {max(payload.scratch_bytes for payload in record_of(program).payloads):,} bytes, " in caplog.text
    )
    assert "more than settings.arena permits" in caplog.text and "[arena.exceeded]" in caplog.text


def test_weights_go_to_sram_where_they_fit_and_help(vectors: list[Tensor]) -> None:
    flash = dense(vectors)
    sram = dense(vectors, constants="sram")
    assert sram.memory.constants_in_sram and (sram.estimate.milliseconds or 0) < 0.7 * (flash.estimate.milliseconds or 0)
    assert torch.equal(sram(vectors[1]), flash(vectors[1]))
    roomy = dense(vectors, constants="auto", ram=sram.memory.ram_bytes)
    assert roomy.budgets.met and roomy.settings is not None and roomy.settings.constants == "sram" and roomy.pte == sram.pte
    tight = dense(vectors, constants="auto", ram=flash.memory.ram_bytes)
    assert tight.budgets.met and tight.settings is not None and tight.settings.constants == 0 and tight.pte == flash.pte


def test_too_slow_takes_ram_for_time(vectors: list[Tensor]) -> None:
    flash = dense(vectors)
    limit = 0.8 * (flash.estimate.milliseconds or 0)
    assert not dense(vectors, latency_ms=limit).budgets.met, "nothing is known of the RAM, so nothing is put there"
    program = dense(vectors, latency_ms=limit, ram="1M")
    assert program.budgets.met and program.memory.constants_in_sram and program.budgets.attempts[-1].change == "weights in SRAM"


def test_too_inexact_raises_modules(images: list[Tensor]) -> None:
    start = wide(images).accuracy
    assert start is not None
    program = wide(images, min_sqnr_db=start.sqnr_db + 3)
    assert program.budgets.met and program.accuracy is not None and program.accuracy.sqnr_db >= start.sqnr_db + 3
    assert program.settings is not None and set(program.settings.modules.values()) == {"a16w8"}
    assert program.budgets.attempts[-1].change.startswith("16 bits for ")


def test_explore_searches_as_compile_does_but_for_what_is_varied(images: list[Tensor]) -> None:
    fast = wide(images, arena="fast")
    limit = fast.memory.ram_bytes - 60_000
    program = wide(images, ram=limit, arena="fast")
    limited = {"calibration": images, "jobs": 1, "settings": Settings("ethos-u55-128", ram=limit, arena="fast")}
    found = ethorch.explore(Wide().eval(), images[0], vary={"target": ["ethos-u55-128"]}, **limited)
    (row,) = found.variants
    assert program.settings is not None and row.searched == {"arena": program.settings.arena} and row == found.cheapest
    assert (row.ram_bytes, row.total_cycles) == (program.memory.ram_bytes, program.estimate.npu_cycles)
    assert "with arena=" in str(found)
    as_said = ethorch.explore(Wide().eval(), images[0], vary={"arena": ["fast"]}, **limited)
    assert as_said.cheapest is None and as_said.variants[0].ram_bytes == fast.memory.ram_bytes


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SpecError, match=r"requires a RAM limit. Use ram \(--ram\)"):
        Settings("ethos-u55-128", constants="auto")
    with pytest.raises(SpecError, match=r"memory for constants 'moon'.*flash"):
        Settings(constants="moon")
    with pytest.raises(SpecError, match="arena is 'tiny'"):
        Settings(arena="tiny")
    assert Settings(arena="64K").arena == 65_536
    kept = Settings(arena="64K", constants="sram", ram="1M")
    assert Settings.from_toml(kept.to_toml()) == kept and kept.spec.memory_mode == "Sram_Only"


def test_the_layout_that_saves_time_is_taken() -> None:
    torch.manual_seed(5)
    net = nn.Sequential(
        nn.Conv2d(6, 16, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    images = [nn.functional.interpolate(torch.rand(1, 6, 8, 8), (32, 32), mode="bilinear") for _ in range(2)]  # too many planes
    found = ethorch.compile(
        net.eval(),
        images[0],
        "ethos-u85-256",
        calibration=images,
        modules={"4": "a16w8"},
        settings=ethorch.Settings(io_layout="auto"),
    )
    assert found.settings is not None and (found.settings.io_layout, found.settings.channels_last) == ("nhwc", True)
    assert [attempt.change for attempt in found.budgets.attempts] == ["", "channels last at inputs and outputs"]
    first, last = (attempt.milliseconds for attempt in found.budgets.attempts)
    assert last == found.estimate.milliseconds < 0.98 * (first or 0) and found.inputs[0].shape == (1, 32, 32, 6)
    plain = ethorch.compile(net, images[0], "ethos-u85-256", calibration=images, modules={"4": "a16w8"})
    assert plain.estimate.milliseconds == first and "Largest saving" in str(plain)
    transposes = [[one.id for one in advice(made.to_json()) if one.id == "transposes.io"] for made in (plain, found)]
    assert transposes == [["transposes.io"], []]
    laid = found(*ethorch.models.layouts.nhwc_inputs((images[1],)))
    torch.testing.assert_close(laid, plain(images[1]), rtol=0, atol=1e-4)  # PyTorch adds means of either layout in its own order


def test_without_channels_there_is_nothing_to_lay_out(vectors: list[Tensor]) -> None:
    found = dense(vectors, io_layout="auto")
    assert found.settings is not None and found.settings.io_layout == "nchw" and len(found.budgets.attempts) == 1


def test_layouts_in_settings() -> None:
    assert Settings(io_layout="nhwc").channels_last and not Settings(io_layout="auto").channels_last
    assert Settings.from_toml(Settings(io_layout="auto").to_toml()).io_layout == "auto"
    with pytest.raises(SpecError, match="unknown layout of inputs and outputs 'nwhc'"):
        Settings(io_layout="nwhc")
    with pytest.raises(SpecError, match="does not support several methods"):
        ethorch.compile({"a": nn.Linear(2, 2)}, {"a": (torch.rand(1, 2),)}, settings=ethorch.Settings(io_layout="auto"))


class FunctionalSoftmax(nn.Module):
    """An operator outside modules, which the search raises, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softmax(self.head(torch.relu(self.conv(x)).mean((2, 3))), dim=-1)


def test_modules_whose_scheme_is_set_are_not_raised() -> None:
    torch.manual_seed(8)
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), nn.Flatten(), nn.Linear(64, 4)).eval()
    samples = [torch.rand(1, 1, 8, 8) for _ in range(3)]

    def schemes(**modules: str) -> tuple[dict[str, str], int]:
        given = {name.removeprefix("_"): scheme for name, scheme in modules.items()}
        found = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, modules=given, min_sqnr_db=200)
        assert found.settings is not None
        return dict(found.settings.modules), len(found.budgets.attempts)

    assert schemes(_0="float") == ({"0": "float", "1": "a16w8", "2": "a16w8"}, 2), "a module within another is not raised, either"
    assert schemes(_0="int8", _2="int8") == ({"0": "int8", "2": "int8"}, 1), "nothing is left to try"


def test_operators_outside_modules_are_raised() -> None:
    torch.manual_seed(7)
    model, samples = FunctionalSoftmax().eval(), [torch.rand(1, 1, 8, 8) for _ in range(3)]
    found = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, min_sqnr_db=200)
    assert not found.budgets.met and found.settings is not None
    assert set(found.settings.modules.values()) == {"a16w8"} and "softmax" in found.settings.modules
    again = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, modules=found.settings.modules)
    assert again.pte == found.pte
    comparison = again.compare()
    assert comparison.layers and comparison.layers[-1].dtype == "int16" and comparison.layers[-1].float_npu_db is not None
    with pytest.raises(SpecError, match=r"unknown module 'hed'\. Did you mean 'head'\? Known: conv, head\."):
        ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, modules={"hed": "a16w8"})
    with pytest.raises(SpecError, match=r"unknown module 'head\.0'"):
        ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, modules={"head.0": "a16w8"})

"""From a board to Vela: which memory holds what, and the ini text that says it."""

from __future__ import annotations

import pytest

from ethorch.support.errors import BoardError, SpecError
from ethorch.targets import boards
from ethorch.targets.boards.description import Board, NpuSlot
from ethorch.targets.boards.loading import FOLDER, parse
from ethorch.targets.boards.memory_roles import DEDICATED, SHARED, SRAM_ONLY, assumptions, configuration, roles
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.npus import lookup

SLOTS = [(boards.load(name), slot) for name in boards.names() for slot in boards.load(name).npus]


def spec_of(found: Board, slot: NpuSlot, mode: str | None = None) -> EthosUCompileSpec:
    text = configuration(found, slot)
    return EthosUCompileSpec(slot.targets[0], found.name, mode or roles(found, slot).memory_mode, config_text=text)


@pytest.mark.parametrize(("found", "slot"), SLOTS, ids=[f"{b.name}-{s.family}" for b, s in SLOTS])
def test_vela_is_told_the_boards_numbers(found: Board, slot: NpuSlot) -> None:
    spec, chosen = spec_of(found, slot), roles(found, slot)
    system = spec.memory_system
    assert system.core_clock_hz == slot.clock_hz
    port = lookup(slot.targets[0]).port_bytes
    for memory, area in ((chosen.feature_maps, system.arena_area), (chosen.constants, system.const_area)):
        assert memory.bytes_per_second is not None
        wanted = memory.bytes_per_second / slot.clock_hz
        assert spec.bytes_per_cycle[area] == pytest.approx(wanted if slot.family == "u85" else min(wanted, port), rel=1e-4)
    assert system.constants_in_sram == (chosen.constants is chosen.feature_maps is chosen.staging)
    assert spec.config_text is not None
    section = spec.vela_config.sections[f"System_Config.{found.name}"]
    assert int(section["sram_max_reads"]) == (chosen.staging.outstanding or 8)
    assert system.staged == (chosen.staging is not chosen.feature_maps)


@pytest.mark.parametrize(
    ("name", "mode", "constants", "feature_maps", "staging"),
    [
        ("alif-e8-hp", SHARED, "mram", "sram", "sram"),
        ("nxp-imx93", DEDICATED, "ddr", "ddr", "ocram"),
        ("infineon-pse84", SRAM_ONLY, "socmem", "socmem", "socmem"),
        ("renesas-rzg3e", SRAM_ONLY, "ddr", "ddr", "ddr"),
    ],
)
def test_roles(name: str, mode: str, constants: str, feature_maps: str, staging: str) -> None:
    found = boards.load(name)
    chosen = roles(found, found.npus[0])
    assert (chosen.memory_mode, chosen.constants.name, chosen.feature_maps.name, chosen.staging.name) == (
        mode, constants, feature_maps, staging,
    )  # fmt: skip


def test_another_memory_mode_moves_the_parts() -> None:
    found = boards.load("alif-e8-hp")
    assert roles(found, found.npus[0], SRAM_ONLY).constants.name == "sram"
    assert roles(found, found.npus[0], SHARED).constants.name == "mram"
    imx = boards.load("nxp-imx93")
    assert roles(imx, imx.npus[0], SHARED).feature_maps.name == "ocram"
    with pytest.raises(SpecError, match=r"unknown memory mode .*Dedicated_Sram.*Shared_Sram, Sram_Only"):
        spec_of(found, found.npus[0], DEDICATED)


def test_a_spec_keeps_its_text_through_the_list() -> None:
    found = boards.load("alif-e8-u85")
    spec = spec_of(found, found.npus[0]).publish()
    pairs = spec.to_pairs()
    assert EthosUCompileSpec.from_pairs(pairs) == spec
    said = b" ".join(value for _, value in pairs).decode()
    assert "core_clock=400000000" in said and "--config=alif-e8-u85.ini" in said and str(FOLDER) not in said
    with pytest.raises(SpecError, match="define the same configuration"):
        EthosUCompileSpec("ethos-u85-256", config_ini="my.ini", config_text=configuration(found, found.npus[0]))
    with pytest.raises(SpecError, match="the generated configuration cannot be read"):
        EthosUCompileSpec("ethos-u85-256", "x", "y", config_text="[a\n")


def test_assumed_numbers_are_named() -> None:
    nuvoton, alif = boards.load("nuvoton-m55m1"), boards.load("alif-e8-hp")
    assert any(row.startswith("flash: bytes_per_second: assumed") for row in assumptions(nuvoton, nuvoton.npus[0]))
    assert not assumptions(alif, alif.npus[0])


def test_a_board_whose_npu_writes_nothing() -> None:
    text = (FOLDER / "alif-e8-hp.toml").read_text().replace('npu_ports = ["sram", "ext"]', 'npu_ports = ["ext"]')
    found = parse(text.encode(), "mine.toml")
    with pytest.raises(BoardError, match="expected a writable memory on the NPU port sram"):
        configuration(found, found.npus[0])

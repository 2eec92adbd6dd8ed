"""Which memory of a board each part goes to."""

from __future__ import annotations

import pytest

from ethorch.deploy.firmware.layout import layout, parts
from ethorch.support.errors import EthorchError
from ethorch.targets.boards.loading import load
from ethorch.targets.vela_ini import MemorySystem

SIZES = {"arena": 100_000, "fast": 0, "tensors": 50_000, "weights": 300_000, "commands": 10_000, "constants": 64}
SHARED = MemorySystem(5e8, "OffChipFlash", "Sram", "Sram", None)
SRAM_ONLY = MemorySystem(5e8, "OffChipFlash", "Sram", "Sram", None, True)
DEDICATED = MemorySystem(1e9, "Dram", "Dram", "Sram", 393216)


def placed(board: str, system: MemorySystem | None, in_dram: bool = False, **sizes: int) -> dict[str, str]:
    found = layout(load(board), parts({**SIZES, **sizes}, 1000, system, in_dram))
    return {entry.part.name.split(".")[-1]: entry.memory.name for entry in found.placements}


def test_the_memory_mode_says_where() -> None:
    shared = placed("corstone-300", SHARED)
    assert (shared["npu_arena"], shared["npu_weights"], shared["npu_commands"]) == ("sram", "ddr-secure", "ddr-secure")
    assert placed("corstone-300", SRAM_ONLY)["npu_weights"] in ("sram", "bram")
    dedicated = placed("corstone-320", DEDICATED, in_dram=True, fast=393216)
    assert (dedicated["npu_arena"], dedicated["npu_fast"]) == ("ddr-secure", "sram")
    assert placed("generic", SHARED)["npu_weights"] == "flash"


def test_nothing_of_the_npus_is_in_a_tcm() -> None:
    for board in ("corstone-300", "corstone-320", "generic"):
        found = layout(load(board), parts(SIZES, 1000, SHARED, False))
        for entry in found.placements:
            assert entry.memory.npu_ports or not entry.part.port, (board, entry)
        assert found.data.kind == "tcm"


def test_secure_addresses_where_the_core_starts_secure() -> None:
    found = layout(load("corstone-300"), parts(SIZES, 1000, SHARED, False))
    assert found.secure and all(found.address(m.base, m.aliases) & 0x10000000 for m in found.memories)
    assert not layout(load("generic"), parts(SIZES, 1000, SHARED, False)).secure


def test_what_does_not_fit_is_said_with_the_memories() -> None:
    with pytest.raises(
        EthorchError,
        match=r"staging memory.*9000000 bytes do not fit into any suitable memory of board corstone-300 .*: \d+ bytes in sram",
    ):
        placed("corstone-300", SHARED, fast=9_000_000)
    with pytest.raises(
        EthorchError, match=r"feature maps \(region 1\): 9000000 bytes do not fit into any suitable memory of board generic"
    ):
        placed("generic", SHARED, arena=9_000_000)

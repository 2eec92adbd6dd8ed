"""Board files: what ethorch brings along is whole, and a wrong file is refused with line and key."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from ethorch.npu.registers import NPUS
from ethorch.support.errors import BoardError, SpecError
from ethorch.targets import boards
from ethorch.targets.boards.description import Sourced
from ethorch.targets.boards.loading import FOLDER, MOST_FILE_BYTES, parse

TEXT = (FOLDER / "corstone-300.toml").read_text()


def test_the_boards_of_the_package_are_named_as_their_files() -> None:
    assert {"corstone-300", "corstone-320", "generic", "mps3", "alif-e8-hp", "alif-e8-u85", "himax-we2"} <= set(boards.names())
    for name in boards.names():
        assert boards.load(name).name == name


def test_every_npu_is_on_some_board() -> None:
    assert {target for name in boards.names() for target in boards.load(name).targets} == {npu.name for npu in NPUS.values()}


@pytest.mark.parametrize("name", boards.names())
def test_every_number_has_a_source(name: str) -> None:
    found = boards.load(name)
    parts: list[Sourced] = [found.cpu, found.uart, *found.memories, *found.npus]
    for part in parts:
        for row in fields(part):
            value = getattr(part, row.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if row.name in part.sources:
                assert part.sources[row.name].strip()
            elif value != row.default and any(isinstance(n, (int, float)) for n in numbers):
                raise AssertionError((name, part, row.name))
    for npu in found.npus:
        assert npu.is_assumed("base") == npu.sources["base"].startswith("assumed")


def test_what_is_assumed_is_said() -> None:
    assert boards.load("corstone-300").cpu.is_assumed("clock_hz")
    assert not boards.load("alif-e8-hp").memory("sram").is_assumed("bytes_per_second")
    assert boards.load("nuvoton-m55m1").memory("flash").is_assumed("bytes_per_second")


@pytest.mark.parametrize("name", boards.names())
def test_an_npu_has_a_memory_to_read_weights_from_and_one_to_write(name: str) -> None:
    found = boards.load(name)
    seen = [memory for memory in found.memories if memory.npu_ports]
    assert any(memory.writable for memory in seen)
    assert all(memory.bytes_per_second and memory.read_latency_cycles for memory in seen)


def test_corstone_300_has_what_the_reference_says() -> None:
    found = boards.load("corstone-300")
    slot, npu = found.npu("u55-128")
    assert (slot.base, slot.interrupt, npu.macs) == (0x48102000, 56, 128)
    assert not found.memory("itcm").npu_ports
    assert found.memory_at(0x31000010) is found.memory("sram")
    assert found.memory_at(0x40000000) is None


def test_names_that_nobody_knows() -> None:
    with pytest.raises(SpecError, match=r"unknown board 'corstone'.*corstone-300"):
        boards.load("corstone")
    with pytest.raises(SpecError, match=r"unknown NPU of board corstone-320.*ethos-u85-256"):
        boards.load("corstone-320").npu("ethos-u55-128")
    with pytest.raises(SpecError, match="unknown memory of board generic"):
        boards.load("generic").memory("ddr")


def test_a_users_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace('name = "corstone-300"', 'name = "mine"'))
    assert boards.load(path).name == boards.load(str(path)).name == "mine"
    assert boards.load(path).path == path


WRONG = {
    "a kind that there is not": ('kind = "dram"', 'kind = "ddr"', "line 76: memory 5, kind: found 'ddr'; expected one of 'sram'"),
    "a key with a slip": ("interrupt = 56", "interupt = 56", "npu 1, interupt: no such key; expected 'interrupt'"),
    "a number as text": ("size_bytes = 0x200000\n", 'size_bytes = "2M"\n', "memory 4, size_bytes: found '2M'"),
    "memories on each other": ("aliases = [0x31000000]", "aliases = [0x21001000]", "memory sram at .* overlaps memory sram"),
    "a TCM that the NPU sees": ("npu_ports = []", 'npu_ports = ["sram"]', "expected \\[\\], because TCMs do not have NPU ports"),
    "an NPU that there is not": (
        "macs = [256, 512]",
        "macs = [256, 500]",
        "Ethos-U65 has no variant with 500 MACs; expected 256, 512",
    ),
    "a missing key": ('kind = "cmsdk"\n', "", "uart, kind: the key is missing"),
    "a number without a source": ('source = "assumed"', "", "cpu, dcache_bytes: the source is missing"),
    "no TOML": ("[cpu]", "[cpu", "(is not|cannot be read as) TOML: .*line 6"),
    "a bandwidth below zero": ("bytes_per_second = 500_000_000", "bytes_per_second = -1", "expected a number above 0"),
    "a truth as a number": ("clock_hz = 500_000_000", "clock_hz = true", "cpu, clock_hz: found True"),
    "a table twice": ("[uart]", "[[uart]]", "uart: found a? ?.*; expected a table"),
    "an interrupt beyond the NVIC": ("interrupt = 56", "interrupt = 96", "expected 0..95, the lines of this CPU's NVIC"),
    "a base off the page": ("base = 0x48102000", "base = 0x48102004", "expected a multiple of 0x1000"),
    "a name twice": ('name = "ddr-secure"', 'name = "ddr"', "'ddr' is the name of another memory"),
    "an FVP that is none": ('u55 = "FVP_Corstone_SSE-300_Ethos-U55"', 'u55 = "rm"', "fvp, u55: found 'rm'"),
    "an FVP for no family": ("fvp = { u55", "fvp = { u50", "fvp, u50: no such family"),
    "a start in no memory": ("vector_table = 0x10000000", "vector_table = 0x50000000", "no memory contains 0x50000000"),
    "a source of nothing": (
        "[cpu.sources]",
        '[cpu.sources]\ncore = "x"',
        "cpu, sources, core: the table has no number with this key",
    ),
    "memory in the core's place": ("base = 0x70000000", "base = 0xE0000000", "overlaps the core's own registers"),
    "a role for no memory": (
        'family = "u55"',
        'family = "u55"\nconstants = "rom"',
        "constants: found 'rom'; expected one of bram",
    ),
    "a role for what the NPU cannot see": ('family = "u55"', 'family = "u55"\nfeature_maps = "dtcm"', "that the NPU can write"),
    "feature maps in a third memory": (
        'family = "u65"',
        'family = "u65"\nconstants = "sram"\nfeature_maps = "ddr"\nstaging = "bram"',
        "npu 2, feature_maps: found 'ddr' with staging 'bram' and constants 'sram'; expected the memory of the constants or",
    ),
    "a repetition": ("macs = [256, 512]", "macs = [256, 256]", "a list without repeated values"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused(case: str) -> None:
    right, wrong, said = WRONG[case]
    assert right in TEXT
    with pytest.raises(BoardError, match=said) as error:
        parse(TEXT.replace(right, wrong, 1).encode(), "mine.toml")
    assert str(error.value).startswith("mine.toml")


def test_the_line_is_that_of_the_key() -> None:
    lines = TEXT.splitlines()
    at = lines.index('kind = "cmsdk"')
    with pytest.raises(BoardError, match=f"mine.toml, line {at + 1}: uart, kind"):
        parse(TEXT.replace('kind = "cmsdk"', 'kind = "8250"').encode(), "mine.toml")


def test_files_that_are_no_board(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match=r"cannot read the board .*none.toml"):
        boards.load(tmp_path / "none.toml")
    with pytest.raises(BoardError, match="not UTF-8"):
        parse(b"\xff\xfe", "mine.toml")
    with pytest.raises(BoardError, match="name: the key is missing"):
        parse(b"", "mine.toml")
    with pytest.raises(BoardError, match=r"as TOML|is not TOML"):
        parse(b"a = " + b"[" * 100_000, "mine.toml")
    with pytest.raises(BoardError, match=r"as TOML|is not TOML"):
        parse(b"a = " + b"9" * 5_000, "mine.toml")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MOST_FILE_BYTES + 1))
    with pytest.raises(BoardError, match="has more than"):
        boards.load(large)

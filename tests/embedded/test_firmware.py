"""Projects all the way: generated, built with ziglang, run on the virtual board; every output is the desk's, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ethorch.embedded.project_run import Options
from tests.support.firmware import NETWORKS, PUBLIC, TARGETS, built_and_run, project

CROSS_SECTION = [
    ("small", "ethos-u55-128", True),
    ("small", "ethos-u85-1024", False),
    ("two_delegates", "ethos-u65-256", True),
    ("state", "ethos-u85-256", True),
    ("sorts", "ethos-u55-128", True),
    ("sixteen_bits", "ethos-u55-128", False),
    ("codes", "ethos-u85-256", True),
]


@pytest.mark.parametrize(("name", "target", "interrupt"), CROSS_SECTION)
def test_outputs_are_the_desks(name: str, target: str, interrupt: bool, tmp_path: Path) -> None:
    project(name, target, tmp_path)
    done = built_and_run(tmp_path, Options(interrupt=interrupt))
    assert done.npu == target


def test_with_the_cores_caches_on(tmp_path: Path) -> None:
    project("small", "ethos-u55-128", tmp_path)
    done = built_and_run(tmp_path, Options(caches=True))
    assert not done.faults


def test_a_part_with_flash_and_without_uart(tmp_path: Path) -> None:
    project("small", "ethos-u85-256", tmp_path, board="generic")
    text = (tmp_path / "firmware" / "link.ld").read_text()
    assert "FLASH (rwx) : ORIGIN = 0x00000000" in text
    built_and_run(tmp_path)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="qemu-system-arm is not installed")
@pytest.mark.parametrize("options", [Options(), Options(interrupt=False), Options(cpu="cortex-m55")], ids=["m33", "polled", "m55"])
@pytest.mark.parametrize("name", ["small", "two_delegates", "state", "sorts"])
def test_the_same_on_an_emulated_cortex_m55(name: str, options: Options, tmp_path: Path) -> None:
    project(name, "ethos-u55-128", tmp_path)
    built_and_run(tmp_path, options, platform="qemu")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="arm-none-eabi-gcc is not installed")
@pytest.mark.parametrize("name", ["small", "sorts", "state"])
def test_the_same_by_gcc(name: str, tmp_path: Path) -> None:
    project(name, "ethos-u55-128", tmp_path)
    built_and_run(tmp_path, Options(compiler="gcc"))


@pytest.mark.long
@pytest.mark.parametrize("interrupt", [True, False], ids=["interrupt", "polled"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*NETWORKS, *PUBLIC])
def test_outputs_are_the_desks_everywhere(name: str, target: str, interrupt: bool, tmp_path: Path) -> None:
    project(name, target, tmp_path)
    built_and_run(tmp_path, Options(interrupt=interrupt))

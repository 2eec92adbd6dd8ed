"""Projects all the way: generated, built with ziglang, run on the virtual board; every output is the desk's, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.firmware import firmware
from ethorch.deploy.firmware.project_run import Options
from ethorch.targets.boards.loading import load, names
from tests.helpers.compiling import compile_with
from tests.helpers.firmware import NETWORKS, PUBLIC, TARGETS, built_and_run, program, project

CROSS_SECTION = [
    pytest.param("small", "ethos-u55-128", True, marks=pytest.mark.long),
    pytest.param("small", "ethos-u85-1024", False, marks=pytest.mark.long),
    ("two_delegates", "ethos-u65-256", True),
    ("state", "ethos-u85-256", True),
    pytest.param("sorts", "ethos-u55-128", True, marks=pytest.mark.long),
    ("sixteen_bits", "ethos-u55-128", False),
    ("codes", "ethos-u85-256", True),
    ("products_on_cpu", "ethos-u55-128", True),
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
@pytest.mark.tools("qemu-arm")
@pytest.mark.parametrize("options", [Options(), Options(interrupt=False), Options(cpu="cortex-m55")], ids=["m33", "polled", "m55"])
@pytest.mark.parametrize("name", ["small", "two_delegates", "state", "sorts", "products_on_cpu"])
def test_the_same_on_an_emulated_cortex_m55(name: str, options: Options, tmp_path: Path) -> None:
    project(name, "ethos-u55-128", tmp_path)
    built_and_run(tmp_path, options, platform="qemu")


@pytest.mark.long
@pytest.mark.tools("arm-gcc")
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


#: Memory mode -> where constants and feature maps are read and written: REGIONCFG and QCONFIG.
MODES = [
    ("ethos-u85-256", "Sram_Only", "0x5551u", "0u"),
    ("ethos-u85-256", "Dedicated_Sram_384KB", "0x555Bu", "2u"),
    ("ethos-u55-128", "Sram_Only", "0x5551u", "0u"),
    ("ethos-u65-256", "Shared_Sram", "0x5553u", "2u"),
    ("ethos-u65-256", "Sram_Only", "0x5551u", "0u"),
]


@pytest.mark.parametrize(
    ("target", "mode", "regions", "queue"), [*MODES[:2], *(pytest.param(*row, marks=pytest.mark.long) for row in MODES[2:])]
)
def test_ports_follow_the_memory_mode(target: str, mode: str, regions: str, queue: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 16, 3)).eval()
    x = torch.randn(4, 3, 24, 24)
    made = firmware(compile_with(model, x[:1], target, calibration=x, progress=False, memory_mode=mode), tmp_path)
    text = (tmp_path / "model" / "model.c").read_text()
    assert f".region_config = {regions}," in text and f".queue_config = {queue}," in text
    assert (made.sizes["fast"] > 0) == mode.startswith("Dedicated")
    assert not built_and_run(tmp_path).faults


@pytest.mark.tools("make")
def test_make_builds_the_same_firmware(tmp_path: Path) -> None:
    project("small", "ethos-u55-128", tmp_path)
    done = subprocess.run(["make", f"PYTHON={sys.executable}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    by_make = (tmp_path / "build" / "firmware.elf").read_bytes()
    assert project_run.build(tmp_path).read_bytes() == by_make


@pytest.mark.tools("cmake", "ninja")
def test_cmake_builds_a_firmware_that_passes(tmp_path: Path) -> None:
    project("small", "ethos-u55-128", tmp_path)
    first = [
        "cmake",
        "-G",
        "Ninja",
        "-B",
        "build",
        "-DCMAKE_TOOLCHAIN_FILE=firmware/ziglang.cmake",
        f"-DETHORCH_PYTHON={sys.executable}",
    ]
    for line in (first, ["cmake", "--build", "build"]):
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    ran = project_run.run(tmp_path, tmp_path / "build" / "firmware.elf").check()
    assert "PASS" in ran.text.split()


FEW = ("alif-e7-hp", "renesas-ra8p1")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.long) for name in names()])
def test_every_board_runs_it(name: str, tmp_path: Path) -> None:
    target = load(name).targets[0]
    made = firmware(program("small", target), tmp_path, board=name)
    assert (made.board, made.target) == (name, target)
    assert not built_and_run(tmp_path).faults

"""The plan's C++ on 64-bit Arm, under QEMU, and as clang compiles it: the same bytes as GCC's plain build makes here.

What is packed for the plain build fits 64-bit Arm: both have vectors of four, and no products of bytes.
Debian: ``apt install g++-aarch64-linux-gnu qemu-user clang``.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ethorch.npu.plan import layout, library
from ethorch.npu.weights import compiled as weights
from tests.helpers.npu_graphs import fill, make_machine
from tests.npu.replay import write_plan
from tests.npu.test_plan import EVERY_KIND, ROOT, compiled_cases

ARM, QEMU, CLANG = "aarch64-linux-gnu-g++", "qemu-aarch64", "clang++"
REPLAY = Path(__file__).parent / "replay.cpp"
pytestmark = pytest.mark.long


def compile_(compiler: str, target: Path, *flags: str) -> None:
    command = [compiler, "-std=c++20", *library.FLAGS, *flags, *map(str, sorted(library.FOLDER.glob("*.cpp"))), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("arm") / "replay"
    compile_(ARM, program, "-static", str(REPLAY))
    return program


@pytest.mark.tools("aarch64-gcc", "qemu-aarch64")
def test_structs_are_as_large_on_arm(replay: Path) -> None:
    found = subprocess.run([QEMU, str(replay)], capture_output=True, text=True, check=True).stdout.split()
    assert list(map(int, found)) == [*map(library.ctypes.sizeof, layout.SIZED)]


@pytest.mark.tools("aarch64-gcc", "qemu-aarch64")
@pytest.mark.parametrize("target", ["u55-128", "u85-256"])
def test_arm_computes_what_the_plain_build_computes(
    replay: Path, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = library.declare(library.native.load(lambda: library.build("plain")))
    work = library.Buffers(found)
    for name in ("library", "plan", "planned", "elementwise"):
        module = importlib.import_module(f"ethorch.npu.plan.{name}")
        for attribute, value in (("library", found), ("buffers", work)):
            if hasattr(module, attribute):
                monkeypatch.setattr(module, attribute, lambda value=value: value)
    seen = 0
    for name, program, model, arrays in compiled_cases(EVERY_KIND, target):
        machine = make_machine(program, model)
        fill(machine, model, arrays)
        planned = machine.compile_plan()
        assert planned is not None, name
        file, result = tmp_path / "plan", tmp_path / "result"
        numbers = write_plan(machine, planned, file)
        before = {number: machine.regions[number].copy() for number in numbers}
        machine.run()
        subprocess.run([QEMU, str(replay), str(file), str(result)], check=True)
        data, at = np.fromfile(result, np.uint8), 0
        for number in numbers:
            region = machine.regions[number]
            there = data[at : at + region.size]
            at += region.size
            different = np.flatnonzero(region != there)
            assert not different.size, f"{name}: region {number}: {different.size} bytes differ, the first at {different[0]:#x}"
        assert at == data.size
        assert any((machine.regions[number] != before[number]).any() for number in numbers), f"{name}: nothing was computed"
        seen += 1
    assert seen >= 20


@pytest.mark.tools("aarch64-gcc")
def test_weights_are_decoded_by_code_that_compiles_for_arm(tmp_path: Path) -> None:
    command = [
        ARM,
        "-std=c++20",
        "-shared",
        "-fPIC",
        "-O3",
        str(Path(weights.__file__).with_name("weights.cpp")),
        "-o",
        str(tmp_path / "weights.so"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.tools("clang")
def test_clang_builds_what_passes_the_tests(tmp_path: Path) -> None:
    """The tests of every instruction set, the weights and batches, with all libraries built by clang."""
    environment = {**os.environ, "CXX": CLANG, "ETHORCH_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    tests = ["tests/npu/test_plan.py", "tests/npu/test_batch.py", "tests/npu/test_weights.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert len(list(tmp_path.glob("npu-plan-*.so"))) >= len(library.levels()), "clang built nothing"

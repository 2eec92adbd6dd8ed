"""The suite on a machine with Python, g++, make and git: tests whose tools are missing are skipped, all others pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import tools

ROOT = Path(__file__).resolve().parent.parent
#: The compiler with its binutils, make, git, and what a shell script takes for granted.
COMMANDS = (
    "as", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dirname", "env", "false", "g++", "gcc", "git", "grep", "head",
    "id", "ld", "ln", "ls", "make", "mkdir", "mktemp", "mv", "nproc", "rm", "sed", "sh", "sort", "tail", "touch", "tr", "true",
    "uname",
)  # fmt: skip
#: Packages whose tests start programs or compile C and C++.
TESTS = [
    "tests/deploy",
    "tests/runtime",
    "tests/npu/test_plan.py",
    "tests/report",
    "tests/support/test_native.py",
    "tests/test_changes.py",
]


def test_a_missing_tool_skips_a_test_and_fails_it_where_tools_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv(tools.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install cmake ninja-build"):
        tools.require_tools("cmake", "ninja")
    monkeypatch.setenv(tools.REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install cmake ninja-build"):
        tools.require_tools("cmake", "ninja")


def test_tools_are_named_by_the_mark_alone() -> None:
    for path in ROOT.glob("tests/**/*.py"):
        assert path == Path(__file__) or not re.search(r"importorskip|skipif\([^)]*which", path.read_text()), path


def test_ci_installs_the_tools_of_the_tests_that_run(request: pytest.FixtureRequest) -> None:
    script = (ROOT / ".ci/run").read_text()
    (installed,) = re.findall(r'PACKAGES="([^"]*)"', script)
    used = {name for item in request.session.items for mark in item.iter_markers("tools") for name in mark.args}
    assert {tools.TOOLS[name][1] for name in used} - {"g++"} <= set(installed.split())
    assert f"export {tools.REQUIRE}=1" in script


def test_the_packages_with_such_tests_exist() -> None:
    assert [name for name in TESTS if not (ROOT / name).exists()] == []


@pytest.mark.long
def test_the_suite_passes_with_no_more_than_the_compiler_make_and_git_on_path(tmp_path: Path) -> None:
    for command in COMMANDS:
        (tmp_path / command).symlink_to(shutil.which(command) or f"/absent/{command}")
    environment = {name: value for name, value in os.environ.items() if name not in (tools.REQUIRE, "CXX", "CC")}
    environment |= {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-rfs", "-n", "2", "-p", "no:cacheprovider", *TESTS]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:]
    skipped = [line for line in run.stdout.splitlines() if line.startswith("SKIPPED")]
    assert skipped and all("a tool is not installed: apt-get install" in line for line in skipped), skipped

"""The pytest plugin, in runs of pytest of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ethorch
from ethorch.support import native

pytest_plugins = ["pytester"]

#: The plugin by its module, whether or not the installed package's entry point has it.
PLUGIN = ("-p", "no:ethorch", "-p", "ethorch.testing.pytest_plugin", "-p", "no:cacheprovider")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are built already: ``pytester`` has a home of its own, where each test would build them again."""
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(native.cache_folder()))


TESTS = """
import torch
from ethorch.testing import assert_runs_on_npu

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())

def test_deployable(ethosu_target):
    assert_runs_on_npu(model(), torch.rand(1, 3, 8, 8), ethosu_target, min_sqnr_db=10)

def test_compiles(ethosu_compile):
    assert ethosu_compile(model(), torch.rand(1, 3, 8, 8)).delegates

def test_too_slow(ethosu_target):
    assert_runs_on_npu(model(), torch.rand(1, 3, 8, 8), ethosu_target, max_cycles=1)
"""


def test_targets_summary_and_figures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_net=TESTS)
    run = pytester.runpytest_inprocess(
        *PLUGIN, "--ethorch-targets", "ethos-u55-32,ethos-u85-256", "--ethorch-report", "figures", "--junitxml=out.xml"
    )
    run.assert_outcomes(passed=4, failed=2)
    out = run.stdout.str()
    assert "programs for Ethos-U" in out and "were written to figures." in out
    rows = [line for line in out.splitlines() if line.startswith("test_net.py::") and "KiB" in line]
    assert len(rows) == 6, "the failing ones too"
    assert sum("ethos-u85-256" in row and " dB" in row for row in rows) == 1
    files = sorted(path.name for path in (pytester.path / "figures").iterdir())
    assert len(files) == 6 and "test_net.py_test_deployable_ethos-u55-32.json" in files
    saved = json.loads((pytester.path / "figures" / "test_net.py_test_deployable_ethos-u85-256.json").read_text())
    assert saved["target"] == "ethos-u85-256" and saved["layers"] and saved["accuracy"]["sqnr_db"] > 10
    assert "total_cycles" in (pytester.path / "out.xml").read_text()


def test_the_summary_comes_from_workers_too(pytester: pytest.Pytester) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    ethorch.compile(model, torch.rand(1, 3, 8, 8), "ethos-u55-128").save(pytester.path / "net.pte")
    load = "import ethorch\nfrom ethorch.testing.recording import record\ndef test_it(): record(ethorch.load('net.pte'))"
    pytester.makepyfile(load)  # without torch
    run = pytester.runpytest_subprocess(*PLUGIN, "-n", "1")
    run.assert_outcomes(passed=1)
    assert "programs for Ethos-U" in run.stdout.str() and "ethos-u55-128" in run.stdout.str()


def test_targets_by_the_configuration_file_and_wrong_ones(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nethorch_targets = ethos-u55-64 ethos-u65-256\n")
    pytester.makepyfile("def test_it(ethosu_target): print('target', ethosu_target)")
    run = pytester.runpytest_inprocess(*PLUGIN, "-s")
    run.assert_outcomes(passed=2)
    run.stdout.fnmatch_lines(["*target ethos-u55-64*", "*target ethos-u65-256*"])
    wrong = pytester.runpytest_inprocess(*PLUGIN, "--ethorch-targets", "ethos-u77")
    assert wrong.ret != 0 and "unknown target 'ethos-u77'" in wrong.stdout.str() + wrong.stderr.str()


def test_a_run_without_it_is_not_disturbed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_it(): assert 'torch' not in sys.modules and 'rich' not in sys.modules")
    run = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:xdist", "-p", "no:hypothesispytest")
    run.assert_outcomes(passed=1)
    assert "Ethos-U" not in run.stdout.str()


def test_nothing_heavy_is_imported_at_start() -> None:
    code = "import sys, ethorch.testing.pytest_plugin; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert "ethorch.testing.recording" in modules
    assert not {"torch", "numpy", "executorch", "rich", "ethosu", "torchao"} & set(modules)


def test_the_package_announces_the_plugin() -> None:
    """Installed, it is there without ``-p``."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    assert lines[lines.index("[project.entry-points.pytest11]") + 1] == 'ethorch = "ethorch.testing.pytest_plugin"'

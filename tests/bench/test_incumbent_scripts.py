"""The scripts that hold ethorch's names and partitions against ExecuTorch's Arm backend, on a few cases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bench import exclusion_checks, incumbent_api
from ethorch.arm.test.common import get_tosa_compile_spec

ROOT = Path(__file__).resolve().parent.parent.parent


def output(module: str, *arguments: str, status: int = 0) -> str:
    """Run a script of bench/ in a process of its own and return what it prints."""
    command = [sys.executable, "-W", "ignore", "-m", f"bench.{module}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_imports_are_substituted_by_name() -> None:
    imported = "from executorch.backends.arm.quantizer import (\n        TOSAQuantizer as Q,\n        annotate,\n    )"
    source = f"if True:\n    {imported}\nimport torch\n"
    text, names = incumbent_api.substitute(source)
    lines = text.splitlines()
    assert lines[1] == "    from ethorch.arm import TOSAQuantizer as Q; from executorch.backends.arm.quantizer import annotate"
    assert lines[5] == "import torch" and names == ["executorch.backends.arm.quantizer.annotate"]


def test_modules_of_ethorch_are_laid_over_those_of_the_arm_backend() -> None:
    text, _ = incumbent_api.substitute("from executorch.backends.arm.test import common\n")
    assert text.startswith("from executorch.backends.arm.test import common; ")
    assert text.endswith("common = bench.incumbent_api.overlay(common, 'ethorch.arm.test.common')\n")
    theirs = ModuleType("common")
    vars(theirs).update(get_tosa_compile_spec=None, parametrize="theirs")
    overlaid = incumbent_api.overlay(theirs, "ethorch.arm.test.common")
    assert overlaid.get_tosa_compile_spec is get_tosa_compile_spec and overlaid.parametrize == "theirs"
    text, names = incumbent_api.substitute("from executorch.backends.arm.util.arm_model_evaluator import Evaluator\n")
    assert text == "from ethorch.arm.util.arm_model_evaluator import Evaluator\n" and not names


@pytest.mark.long
def test_a_check_keeps_the_same_operators_on_the_cpu() -> None:
    text = output("exclusion_checks", "--operators", "aten.relu.default,aten.bmm.default,aten.hardswish.default")
    for kind in ("DontPartition", "DontPartitionName", "custom", "DontPartitionModule"):
        assert f"| `{kind}` | 2 | 0 | 1 | 0 | 0 | 0 | 0 |" in text


def test_operators_that_are_taken_apart_differ_only_if_some_are_delegated() -> None:
    whole, parts = exclusion_checks.Split(("hardswish",)), ("clamp", "mul")
    verdicts = [
        exclusion_checks.Row("x", "custom", "", exclusion_checks.Split(parts, npu), whole).verdict for npu in ((), ("add",))
    ]
    assert verdicts == ["in other parts", "different"]
    fewer = exclusion_checks.Row("x", "custom", "", exclusion_checks.Split(("clamp",), ("mul",)), exclusion_checks.Split(parts))
    assert fewer.verdict == exclusion_checks.FEWER


@pytest.mark.long
def test_public_names_pass_the_arm_backends_tests() -> None:
    text = output("incumbent_api", "--folders", "public_api_bc,quantizer")
    assert "| public_api_bc/test_ethosu_flow.py | 1 | 0 | 0 |" in text and "UNEXPLAINED" not in text

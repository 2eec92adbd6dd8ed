"""``ethorch aot-arm-compiler``, which has the options of the script in ExecuTorch's Arm backend."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from ethorch.cli import app
from tests.cli.commands import MODEL, answer, complaint


@pytest.mark.parametrize("quantize", [["-q"], ["-q", "A16W8"]])
def test_the_arm_backends_script(folder: Path, capsys: pytest.CaptureFixture[str], quantize: list[str]) -> None:
    (folder / "arm.py").write_text(MODEL + "\nModelUnderTest, ModelInputs = small()[0], small()[1]\n")
    torch.save((torch.ones(1, 3, 16, 16),), folder / "data.pt")
    arguments = ["-m", folder / "arm.py", "-d", *quantize, "-t", "ethos-u85-256", "--bundleio", "-i", folder / "tosa"]
    more = ["--calibration_data", folder / "data.pt", "--system_config", "Ethos_U85_SYS_DRAM_Mid", "--debug"]
    found = answer(capsys, "aot-arm-compiler", *arguments, "-o", folder / "made", *more)
    assert found["settings"]["scheme"] == ("a16w8" if quantize[1:] else "int8")
    assert found["output"] == str(folder / "made" / "arm_arm_delegate_ethos-u85-256.bpte")
    assert (folder / "made" / "arm_arm_delegate_ethos-u85-256.bpte").read_bytes()[4:6] == b"BP"
    assert list((folder / "tosa").glob("*.tosa"))
    for name in ("made", "tosa"):
        shutil.rmtree(folder / name)
    for name in ("arm.py", "data.pt"):
        (folder / name).unlink()


def test_the_arm_backends_script_has_all_of_its_options() -> None:
    package = importlib.util.find_spec("executorch.backends.arm")
    assert package is not None and package.origin is not None
    tree = ast.parse((Path(package.origin).parent / "scripts" / "aot_arm_compiler.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"]
    theirs = {arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant)}
    ours = {
        option for parameter in typer.main.get_command(app.app).commands["aot-arm-compiler"].params for option in parameter.opts
    }
    assert len(theirs) > 25 and theirs <= ours


def test_the_arm_backends_script_without_an_npu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TOSA, CMSIS-NN, and no delegate at all; the options without effect are accepted."""
    (folder / "arm.py").write_text(MODEL + "\nModelUnderTest, ModelInputs = small()[0], small()[1]\n")
    script = ["aot-arm-compiler", "-m", folder / "arm.py", "-o", folder / "made"]
    found = answer(capsys, *script, "-d", "-q", "-t", "TOSA-1.0+INT", "--enable_debug_mode", "tosa", "-e", "-c", "x.json")
    assert found["summary"].startswith("5 of 5 PyTorch operators on TOSA-1.0+INT in 1 delegate")
    assert list((folder / "made" / "arm_arm_delegate_TOSA-1.0+INT_debug").glob("*.tosa"))
    options = ["-q", "-t", "cortex-m55", "--enable_qdq_fusion_pass"]  # defines operators: in a process of its own
    subprocess.run([sys.executable, "-m", "ethorch.cli", *map(str, script), *options], check=True, capture_output=True)
    assert b"cortex_m::quantized_conv2d" in (folder / "made" / "arm_arm_cortex-m55.pte").read_bytes()
    answer(capsys, *script, "--bundleio", "-e", "generic")
    assert (folder / "made" / "arm_arm_ethos-u55-128.bpte").read_bytes()[4:6] == b"BP"
    assert complaint(capsys, *script, "-d", "-q", "-t", "vgf", status=2).count(".") == 3  # two of them in TOSA-1.0
    assert "--direct_drive" in complaint(capsys, *script, "-d", "-q", "--direct_drive", status=2)
    assert "missing.so" in complaint(capsys, *script, "-d", "-q", "-s", "missing.so", status=2)
    shutil.rmtree(folder / "made")
    (folder / "arm.py").unlink()

"""Scripts from the documentation of ExecuTorch's Arm backend, run with the names of ``ethorch.arm``.

``tests/documented`` holds them as published. Only imports, calls that today's torch and ExecuTorch lack, and the download of
weights may change.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ethorch.arm
from ethorch import runtime
from ethorch.models.zoos import torchvision_models

SCRIPTS = Path(__file__).parent / "documented"
#: A pattern and its replacement.
CHANGES = [
    (r"executorch\.backends\.arm(?=[. ])", "ethorch.arm"),
    (r"torch\.ao\.quantization(?=\.quantize_pt2e import)", "torchao.quantization.pt2e"),  # moved
    (r"export_for_training", "export"),  # torch has removed it
    (r"# \.so suffix is .*\ntorch\.ops\.load_library\(\n.*\n\)\n", ""),  # the wheel contains the kernels
    (r"mobilenetv2\.MobileNet_V2_Weights\.DEFAULT", "None"),
]


def adapted(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the script with the changes, and print the difference."""
    published = changed = (SCRIPTS / f"{name}.txt").read_text()
    for pattern, replacement in CHANGES:
        changed = re.sub(pattern, replacement, changed)
    lines = list(difflib.unified_diff(published.splitlines(), changed.splitlines(), "published", "run", lineterm="", n=0))
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert "backends.arm" not in changed
    removed = [line[1:] for line in lines if line.startswith("-") and not line.startswith("---")]
    allowed = r"import |export_for_training|load_library|\.so suffix|libquantized_ops_aot_lib|^\)$|weights="
    assert [line for line in removed if not re.search(allowed, line)] == []
    return changed


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    script = adapted(name, capsys)
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile(script, f"{name}.txt", "exec"), names)
    return names


def test_the_script_of_the_first_backend_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MobileNetV2 by way of ``ArmCompileSpecBuilder``, whose list the quantizer and the partitioner accept."""
    torchvision_models()
    names = run("backend_page_2025", tmp_path, monkeypatch, capsys)
    program = runtime.load(tmp_path / "mv2_arm_ethos_u55.pte")
    assert len(program.delegates) == 1
    (output,), expected = program(*names["example_inputs"]), names["graph_module"](*names["example_inputs"])
    assert (output - expected).abs().max() <= 0.1 * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "file"), [("notebook_0_7", "simple_example.pte"), ("notebook_1_4", "ethos_u_minimal_example.pte")]
)
def test_the_minimal_notebooks(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, tmp_path, monkeypatch, capsys)
    program = runtime.load(tmp_path / file)
    assert len(program.delegates) == 1
    one = torch.ones(1, 1, 1, 1)
    assert abs(program(one, one)[0].item() - 2) < 0.02


@pytest.mark.long
def test_the_notebook_with_cmsis_nn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It lowers with ethorch, then with the passes of ExecuTorch's Cortex-M backend."""
    script = adapted("notebook_fallback", capsys)  # it defines operators: in a process of its own
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "ethos_u_cmsis_nn_fallback_example.pte").stat().st_size > 1000


def test_every_name_is_public() -> None:
    assert all(hasattr(ethorch.arm, name) for name in ethorch.arm.__all__)

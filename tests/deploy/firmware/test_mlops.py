"""Arm's delivery path: the target from a ``*.cbuild-mlops.yml``, the AI layer as csolution takes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ethorch import cli
from ethorch.deploy.firmware.mlops import read_mlops
from ethorch.support.errors import EthorchError, SpecError

NET = """
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU()).eval(), torch.rand(1, 1, 8, 8), torch.rand(4, 1, 8, 8)
"""
FILE = """
cbuild-mlops:
  generated-by: csolution version 2.14.1
  processor: {type: Cortex-M85}
  npu: {type: Ethos-U85, macs: 512}
  vela:
    options: --accelerator-config ethos-u85-512 --system-config Ethos_U85_SYS_DRAM_Mid --memory-mode Dedicated_Sram_384KB
    misc: --optimise=Size
  model: {clayer: layer/ai_layer.clayer.yml, name: Tiny-CNN 2}
"""


def described(folder: Path, text: str = FILE) -> Path:
    path = folder / "app.cbuild-mlops.yml"
    path.write_text(text)
    return path


def test_what_the_file_says(tmp_path: Path) -> None:
    found = read_mlops(described(tmp_path))
    assert (found.name, found.target, found.processor) == ("tiny_cnn_2", "ethos-u85-512", "Cortex-M85")
    assert (found.system_config, found.memory_mode) == ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB")
    assert found.vela_flags == ("--optimise=Size",) and found.config_ini is None
    assert found.clayer == tmp_path / "layer" / "ai_layer.clayer.yml"


def test_the_ini_is_relative_to_the_file_and_the_accelerator_says_the_npu(tmp_path: Path) -> None:
    text = "cbuild-mlops: {npu: {type: Ethos-U55}, vela: {ini: .cmsis/part.ini, options: '--accelerator-config=ethos-u55-64'}}"
    found = read_mlops(described(tmp_path, text))
    assert found.config_ini == tmp_path / ".cmsis" / "part.ini"
    assert (found.target, found.name, found.clayer) == ("ethos-u55-64", "model", None)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("a: [", EthorchError, "is not valid YAML"),
        ("cbuild: {}", EthorchError, "no key 'cbuild-mlops'"),
        ("cbuild-mlops: {npu: 7}", EthorchError, "expected npu to be a mapping, got 7"),
        ("cbuild-mlops: {npu: {type: Ethos-U85}}", SpecError, "got 'Ethos-U85' and None"),
        ("cbuild-mlops: {npu: {type: Ethos-U95, macs: 128}}", SpecError, "ethos-u95-128"),
        ("cbuild-mlops: {vela: {options: --memory-mode}}", EthorchError, "expected a value for --memory-mode"),
        ("cbuild-mlops: {vela: {options: '\"a'}}", EthorchError, "cannot parse vela.options"),
        ("cbuild-mlops: {npu: {type: Ethos-U55, macs: 128}, vela: {misc: '\"a'}}", EthorchError, "cannot parse vela.misc"),
    ],
)
def test_what_is_wrong_is_said(text: str, error: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        read_mlops(described(tmp_path, text))


def test_the_layer_goes_where_the_file_says_and_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(NET)
    file = described(tmp_path)
    assert cli.main(["compile", f"{tmp_path}/net.py:net", "--settings", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == "ethos-u85-512" and found["memory_system"]["memory_mode"] == "Dedicated_Sram_384KB"
    layer_command = ["firmware", f"{tmp_path}/net.py:net", "--settings", str(file), "--build-system", "cmsis"]
    assert cli.main([*layer_command, "-o", str(tmp_path / "layer"), "--json"]) == 0
    assert "ai_layer.clayer.yml" in json.loads(capsys.readouterr().out)["files"]
    layer = yaml.safe_load((tmp_path / "layer" / "ai_layer.clayer.yml").read_text())["layer"]
    files = [entry["file"] for entry in layer["groups"][0]["files"]]
    assert "model/tiny_cnn_2.c" in files and (tmp_path / "layer" / "REPORT.md").exists()
    include = [f"-I{tmp_path / 'layer' / path}" for path in layer["add-path"]]
    use = tmp_path / "use.c"
    use.write_text('#include "model_params.h"\nint shape[] = MODEL_PARAMS_INPUT_0_SHAPE;\nMODEL_PARAMS_OUTPUT_0_TYPE x;\n')
    strings = f"-I{Path(read_mlops.__code__.co_filename).parent / 'c' / 'freestanding'}"
    for path in (*(tmp_path / "layer" / name for name in files), use):
        line = [
            sys.executable, "-m", "ziglang", "cc", "-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m85", "-ffreestanding",
            *include, strings, "-c", str(path), "-o", str(tmp_path / "one.o"),
        ]  # fmt: skip
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_command_line_comes_before_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(NET)
    line = ["compile", f"{tmp_path}/net.py:net", "--settings", str(described(tmp_path)), "--target", "ethos-u85-256"]
    assert cli.main([*line, "--set", "memory_mode=Shared_Sram", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == "ethos-u85-256" and found["memory_system"]["memory_mode"] == "Shared_Sram"

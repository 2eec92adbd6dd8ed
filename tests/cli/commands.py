"""The model of the tests, and functions that run a subcommand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ethorch import cli

MODEL = """
import torch
from PIL import Image

def small():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                                torch.nn.Flatten(), torch.nn.Linear(8, 4))
    samples = [(torch.randn(1, 3, 16, 16),) for _ in range(4)]
    return model, samples[0], samples

class Modes(torch.nn.Module):
    def forward(self, x):
        return torch.mode(x.relu())[0]

def modes():
    return Modes(), (torch.rand(1, 8, 8),)

def no_inputs():
    return torch.nn.ReLU()

def two():
    return {"a": torch.nn.ReLU(), "b": torch.nn.ReLU()}, {"a": torch.rand(1, 8), "b": torch.rand(1, 8)}
"""


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert cli.main([*map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert undocumented(str(arguments[0]), found) == []
    return found


def undocumented(command: str, data: Any) -> list[str]:
    """Keys of a subcommand's answer, and of the rows in it, that its section of docs/json.md does not have."""
    text = (Path(__file__).resolve().parent.parent.parent / "docs" / "json.md").read_text()
    sections = dict(re.findall(r"^## (\S.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    own = [title for title in sections if title.split()[0] == command]
    known = {key for title in own for key in re.findall(r"`([^`\n]+)`", sections[title])}
    first = data[0] if isinstance(data, list) else data
    if not own:  # as of the program, and tested with the report
        return []
    rows = [value[0] for value in first.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    return sorted({key for row in (first, *rows) for key in row} - known)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 1) -> str:
    capsys.readouterr()
    assert cli.main([*map(str, arguments)]) == status
    out, err = capsys.readouterr()
    assert out == ""
    return err

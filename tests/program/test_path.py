"""The path of one model through ``ethorch.compile``: each stage is entered once, in the order of docs/architecture.md."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import ethorch
from ethorch.backend.emit.partitions import partition_graph
from ethorch.formats.pte_writer import write
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.program.budget_search import search_budgets
from ethorch.program.build import build_program, quantize
from ethorch.program.compile import compile as compile_model
from ethorch.program.compile import load_methods
from ethorch.program.verification import verify_program
from ethorch.vela.delegate import compile_lowered
from ethorch.vela.repair import repair_delegate

pytestmark = pytest.mark.core
ROOT = Path(ethorch.__file__).parent
#: What one default compilation enters, in this order, each of them once.
STEPS = (
    inspect.unwrap(compile_model), load_methods, search_budgets, quantize, build_program, partition_graph, compile_lowered, rewrite,
    repair_delegate, write, verify_program,
)  # fmt: skip


def place(code: CodeType) -> str:
    """Return ``file:function`` of a function of ethorch."""
    return f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_name}"


def entries(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> list[str]:
    """Return the steps that compiling a model enters, in order."""
    codes = {step.__code__ for step in STEPS}
    found: list[str] = []

    def observe(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code in codes:
            found.append(place(frame.f_code))

    before = sys.getprofile()
    sys.setprofile(observe)
    try:
        ethorch.compile(model, inputs, "ethos-u55-128", calibration=[inputs] * 2, progress=False, **options)
    finally:
        sys.setprofile(before)
    return found


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()


def test_a_model_takes_each_step_once_and_in_order() -> None:
    found = entries(network(), torch.randn(1, 3, 8, 8))
    print(*found, sep="\n")
    assert found == [place(step.__code__) for step in STEPS]


def test_the_architecture_shows_this_path() -> None:
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    section = text[text.index("## The path of a model") :]
    shown = re.findall(r"^\d+\. `([\w/.]+:\w+)`", section[: section.index("\n## ", 1)], re.MULTILINE)
    assert shown == [place(step.__code__) for step in STEPS]


def test_lowering_and_the_stream_are_entered_once_for_each_delegate() -> None:
    """Of two delegates, with a module on the CPU between them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    found = entries(model, torch.randn(2, 8), modules={"1": "float"})
    assert found.count(place(compile_lowered.__code__)) == found.count(place(rewrite.__code__)) == 2
    assert found.count(place(write.__code__)) == found.count(place(verify_program.__code__)) == 1

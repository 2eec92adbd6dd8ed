"""What a user touches stays small: names, parameters, fields, commands and options are counted."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import get_args

import pytest
import torch
import typer

import ethorch
from ethorch import cli
from ethorch.cli.app import COMMANDS
from ethorch.cli.command import parameters
from ethorch.targets.settings import Settings


def test_compile_has_fifteen_parameters() -> None:
    assert len(inspect.signature(ethorch.compile).parameters) == 15
    assert {"fps", "leave_out", "nhwc_io", "dump", "config"}.isdisjoint(inspect.signature(ethorch.compile).parameters)


def test_settings_have_thirty_fields_at_most() -> None:
    assert len(fields(Settings)) <= 30
    both = {*inspect.signature(ethorch.compile).parameters} & {entry.name for entry in fields(Settings)}
    assert both == {"target", "shapes", "scheme", "modules", "io", "board", "ram", "flash", "latency_ms", "min_sqnr_db"}


def options(command: str) -> Iterator[str]:
    for parameter in parameters(COMMANDS[command]):
        if isinstance(get_args(parameter.annotation)[1], typer.models.OptionInfo):
            yield parameter.name


def test_commands_and_options_are_counted() -> None:
    assert len(COMMANDS) == 17
    assert sum(len(list(options(name))) for name in COMMANDS if name != "aot-arm-compiler") <= 120


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "aot-arm-compiler"])
def test_help_fits_a_screen(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 40
    assert out.count("\N{BOX DRAWINGS LIGHT ARC DOWN AND RIGHT}") <= 4  # arguments, and three headings of options


def test_the_short_name_of_disassemble(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dis", "--help"]) == 0
    assert "dis " not in capsys.readouterr().out.splitlines()[3:]
    assert cli.main(["--help"]) == 0
    assert "\n│ dis " not in capsys.readouterr().out


def test_public_names_are_counted() -> None:
    assert len(ethorch.__all__) <= 25
    modules = [getattr(ethorch, name) for name in ethorch.__all__ if inspect.ismodule(getattr(ethorch, name))]
    assert sorted(module.__name__ for module in modules) == [
        "ethorch.arm", "ethorch.language", "ethorch.targets", "ethorch.targets.boards", "ethorch.testing", "ethorch.tosa",
        "ethorch.tuning",
    ]  # fmt: skip
    for module in (*modules, ethorch.arm.quantizer):
        assert 0 < len(module.__all__) <= 12, module.__name__
        assert all(hasattr(module, name) for name in module.__all__), module.__name__


def test_nothing_public_is_hidden_by_a_module_of_its_name() -> None:
    for name in ethorch.tuning.__all__:
        assert callable(getattr(ethorch.tuning, name)) or name == "compress"


def test_a_program_has_twenty_members() -> None:
    program = ethorch.compile(torch.nn.Linear(2, 2).eval(), torch.rand(1, 2), settings=Settings(verify=False), progress=False)
    assert [name for name in dir(program) if not name.startswith("_")] == [
        "accuracy", "budgets", "compare", "delegates", "estimate", "explain", "inputs", "memory", "methods", "operators", "outputs",
        "profile", "pte", "report", "reset", "save", "settings", "suggest", "target", "to_json",
    ]  # fmt: skip
    (delegate,) = program.delegates
    assert (
        delegate.layers
        and delegate.tosa
        and delegate.payload.weights
        and 0 < delegate.encoded_bytes <= len(delegate.payload.weights)
    )
    assert {row.where for row in program.operators} == {"NPU", "CPU"}
    assert program.estimate.macs == 4 and program.estimate.npu_hz == 500e6 and program.estimate.milliseconds
    assert program.budgets.met and len(program.budgets.attempts) == 1

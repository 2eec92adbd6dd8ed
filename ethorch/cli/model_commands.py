"""Subcommands that begin with a model: compile, explain, compare, sensitivity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer, Status
from ethorch.cli.app import command
from ethorch.errors import SpecError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ethorch.model_files import UserModel
    from ethorch.program.program import Program
    from ethorch.program.settings import Settings

PANEL = "A model"


def _user_model(
    model: str,
    shape: list[str] | None,
    weights: Path | None,
    calibrate: list[Path] | None,
    limit: int | None,
    transform: Callable[[Any], Any] | None = None,
) -> UserModel:
    """The model that is named, with the inputs and weights that the options say."""
    from ethorch.program.compile import user_model
    from ethorch.program.model_options import loaded

    files = [str(path) for path in calibrate] if calibrate else None
    return user_model(loaded(model, shape, weights), calibration=files, limit=limit, transform=transform)


def compiled(
    chosen: Settings,
    model: str,
    shape: list[str] | None,
    weights: Path | None,
    calibrate: list[Path] | None,
    limit: int | None,
    dump: Path | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> Program:
    """The program of the model that is named."""
    from ethorch.user_code import find

    find(model)  # what is wrong is said before the seconds that the imports below take
    from ethorch.program.compile import compile as compile_model

    user = _user_model(model, shape, weights, calibrate, limit, transform)
    return compile_model(user, settings=chosen, dump=None if dump is None else str(dump))


@command("compile", PANEL)
def compile_(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .pte, .bpte or .tosa to write, or a folder.", metavar="FILE")],
    keep: Annotated[Path | None, typer.Option(help="Write the settings there, for --settings.", metavar="FILE.toml")] = None,
    settings: options.SettingsFile = None,
    shape: options.Shape = None,
    weights: options.Weights = None,
    calibrate: options.Calibrate = None,
    limit: options.Limit = None,
    mean: options.Mean = None,
    std: options.Std = None,
    scheme: options.Scheme = None,
    module: options.ModuleScheme = None,
    leave_out: options.LeaveOut = None,
    io: options.Io = None,
    target: options.Target = None,
    nhwc_io: options.NhwcIo = False,
    system_config: options.SystemConfig = None,
    memory_mode: options.MemoryMode = None,
    config_ini: options.ConfigIni = None,
    vela_flag: options.VelaFlag = None,
    ram: options.Ram = None,
    flash: options.Flash = None,
    latency_ms: options.Latency = None,
    fps: options.Fps = None,
    min_sqnr_db: options.MinSqnr = None,
    dump: Annotated[Path | None, typer.Option(help="Keep TOSA graphs and payloads there.", metavar="DIR")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the summary in GitHub's Markdown.")] = False,
) -> Answer:
    """Make a .pte of a PyTorch model: quantize it, compile it for the NPU, and say what became of it."""
    from ethorch.program.saving import check_writable

    chosen = options.settings_of(
        settings=settings, target=target, scheme=scheme, io=io, module=module, leave_out=leave_out, nhwc_io=nhwc_io,
        system_config=system_config, memory_mode=memory_mode, config_ini=config_ini, vela_flag=vela_flag,
        ram=ram, flash=flash, latency_ms=latency_ms, fps=fps, min_sqnr_db=min_sqnr_db,
    )  # fmt: skip
    check_writable(output)
    program = compiled(chosen, model, shape, weights, calibrate, limit, dump, options.normalization(mean, std))
    program.save(output)
    if keep is not None:
        from ethorch.formats.files import write_whole

        write_whole(keep, chosen.to_toml().encode())
    data = {"output": str(output), **program.to_json()}

    def text() -> RenderableType:
        if markdown:
            from ethorch.report.markdown import markdown as summarized

            return summarized(data, Path(model).name)
        return options.with_line(program.rich(), f"wrote {output}")

    return Answer(data, text, Status.DONE if program.fits else Status.COULD_NOT)


@command("explain", PANEL)
def explain(
    model: options.Model,
    operator: Annotated[str | None, typer.Option(help="Only operators with this in their name, e.g. softmax.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Only what runs on the CPU.")] = False,
    settings: options.SettingsFile = None,
    shape: options.Shape = None,
    weights: options.Weights = None,
    calibrate: options.Calibrate = None,
    limit: options.Limit = None,
    scheme: options.Scheme = None,
    module: options.ModuleScheme = None,
    leave_out: options.LeaveOut = None,
    io: options.Io = None,
    target: options.Target = None,
    nhwc_io: options.NhwcIo = False,
    system_config: options.SystemConfig = None,
    memory_mode: options.MemoryMode = None,
    config_ini: options.ConfigIni = None,
    vela_flag: options.VelaFlag = None,
) -> Answer:
    """Why is an operator on the NPU, or not? Where each runs, what it costs, reasons and ways out. Takes a .pte too."""
    chosen = options.settings_of(
        settings=settings, target=target, scheme=scheme, io=io, module=module, leave_out=leave_out, nhwc_io=nhwc_io,
        system_config=system_config, memory_mode=memory_mode, config_ini=config_ini, vela_flag=vela_flag,
    )  # fmt: skip
    if model.endswith(".pte"):
        program = options.load_program(Path(model))
    else:
        program = compiled(chosen, model, shape, weights, calibrate, limit)
    explanation = program.explain(operator=operator, cpu_only=cpu)
    return Answer(explanation.to_json(), explanation.rich)


@command("compare", PANEL)
def compare(
    model: options.Model,
    inputs: options.Inputs = None,
    settings: options.SettingsFile = None,
    shape: options.Shape = None,
    weights: options.Weights = None,
    calibrate: options.Calibrate = None,
    limit: options.Limit = None,
    scheme: options.Scheme = None,
    module: options.ModuleScheme = None,
    leave_out: options.LeaveOut = None,
    io: options.Io = None,
    target: options.Target = None,
    nhwc_io: options.NhwcIo = False,
    system_config: options.SystemConfig = None,
    memory_mode: options.MemoryMode = None,
    config_ini: options.ConfigIni = None,
    vela_flag: options.VelaFlag = None,
) -> Answer:
    """Is the result right? One input through the float model, the quantized one and the NPU, operator by operator."""
    chosen = options.settings_of(
        settings=settings, target=target, scheme=scheme, io=io, module=module, leave_out=leave_out, nhwc_io=nhwc_io,
        system_config=system_config, memory_mode=memory_mode, config_ini=config_ini, vela_flag=vela_flag,
    )  # fmt: skip
    program = compiled(chosen, model, shape, weights, calibrate, limit)
    assert program.model is not None
    taken = program.model.example_inputs
    if inputs:
        from ethorch.program.model_options import inputs_from

        taken = inputs_from(inputs, program.model.example_inputs)
    found = program.compare(*taken)
    return Answer(found.to_json(), found.to_text, Status.DONE if found.bit_exact else Status.COULD_NOT)


@command("sensitivity", PANEL)
def sensitivity(
    model: options.Model,
    settings: options.SettingsFile = None,
    shape: options.Shape = None,
    weights: options.Weights = None,
    calibrate: options.Calibrate = None,
    limit: options.Limit = None,
    scheme: options.Scheme = None,
    target: options.Target = None,
) -> Answer:
    """Which modules lose the accuracy? Each quantized alone, and each left in float alone, on the calibration samples."""
    chosen = options.settings_of(settings=settings, target=target, scheme=scheme)
    from ethorch.user_code import find

    find(model)
    from ethorch.accuracy.sensitivity import sensitivity as measured
    from ethorch.program.schemes import quantizer_for
    from ethorch.progress import stage

    user = _user_model(model, shape, weights, calibrate, limit)
    if user.quantized:
        raise SpecError(f"{model} is quantized already; sensitivity needs the float model.")
    with stage("measure modules") as step:
        found = measured(
            user.module, quantizer_for(chosen), list(user.calibration) or [user.example_inputs], progress=lambda *_: step()
        )
    return Answer(found.to_json(), found.rich)

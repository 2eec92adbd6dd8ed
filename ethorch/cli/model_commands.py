"""Subcommands that begin with a model: compile, explain, compare, sensitivity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer, Status
from ethorch.cli.command import command
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ethorch.models.load import UserModel
    from ethorch.program.program import Program
    from ethorch.targets.settings import Settings

PANEL = "A model"


def user_model(model: str | UserModel, samples: options.Samples, several: bool = False) -> UserModel:
    """The model that is named, with the inputs and weights that the options say.

    Args:
        several: --shape may be given several times.
    """
    if len(samples.shape or ()) > 1 and not several:
        raise SpecError(
            "--shape is given several times, and this command is for one method. Give it once, inputs separated by commas."
        )
    from ethorch.cli.model_options import loaded
    from ethorch.program.compile import user_model as checked
    from ethorch.targets.settings import shapes_from

    files = [str(path) for path in samples.calibrate] if samples.calibrate else None
    transform = samples.transform()
    found = loaded(model, samples.weights) if isinstance(model, str) else model
    return checked(found, calibration=files, limit=samples.limit, transform=transform, shapes=shapes_from(samples.shape or ()))


def compiled(
    chosen: Settings, model: str, samples: options.Samples, *, dump: Path | None = None, etrecord: Path | None = None
) -> Program:
    """The program of the model that is named."""
    from ethorch.models.user_code import find

    find(model)  # what is wrong is said before the seconds that the imports below take
    from ethorch.cli.model_options import loaded
    from ethorch.models.load import UserMethods
    from ethorch.program.compile import compile as compile_model

    user = loaded(model, samples.weights)
    chosen = chosen.with_(shapes=samples.shape)
    if isinstance(user, UserMethods):
        if samples.calibrate:
            raise SpecError(f"{model} is of several methods, whose calls for calibration it has to bring: --calibrate is of one.")
    else:
        user = user_model(user, samples, several=True)
    return compile_model(user, settings=chosen, dump=None if dump is None else str(dump), etrecord=etrecord)


@command("compile", PANEL)
def compile_(
    model: options.Model,
    samples: options.Samples,
    quantization: options.Quantization,
    compiler: options.Compiler,
    budget: options.Budget,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The .pte, .bpte or .tosa to write, or a folder. Needed without --ai-layer.", metavar="FILE"
        ),
    ] = None,
    mlops: Annotated[
        Path | None,
        typer.Option(
            help="NPU, memories and ini from what `cbuild setup` wrote; other options come first.", metavar="X.cbuild-mlops.yml"
        ),
    ] = None,
    ai_layer: Annotated[
        Path | None, typer.Option(help="Write the model as C there, as a layer of a CMSIS solution.", metavar="DIR")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Write the settings there, for --settings.", metavar="FILE.toml")] = None,
    dump: Annotated[Path | None, typer.Option(help="Keep TOSA graphs and payloads there.", metavar="DIR")] = None,
    etrecord: Annotated[
        Path | None, typer.Option(help="Write ExecuTorch's ETRecord there, for its Inspector; slower.", metavar="FILE")
    ] = None,
    suggest: Annotated[
        bool,
        typer.Option("--suggest", help="Try what would make it smaller or faster, as is done where a budget does not hold."),
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the summary in GitHub's Markdown.")] = False,
) -> Answer:
    """Make a .pte of a PyTorch model: quantize it, compile it for the NPU, and say what became of it."""
    from ethorch.models.user_code import find
    from ethorch.program.saving import check_writable

    if (quantization.target or "").startswith("TOSA"):
        return _compile_to_tosa(model, samples, quantization, output, dump)
    chosen = options.settings_of(quantization, compiler, budget)
    described = None
    if mlops is not None:
        from ethorch.deploy.firmware import mlops as cbuild

        described = cbuild.read_mlops(mlops)
        given = {"target": quantization.target, "vela_flags": compiler.vela_flag, **vars(compiler)}
        chosen = chosen.with_(**cbuild.settings_of(described, [key for key, value in given.items() if value]))
        if output is None and ai_layer is None and described.clayer is not None:
            ai_layer = described.clayer.parent
    find(model)  # what is wrong with it is said before what is missing
    if output is None and ai_layer is None:
        raise SpecError("nothing is to be written: give --output FILE, or --ai-layer DIR.")
    if output is not None:
        check_writable(output)
    program = compiled(chosen, model, samples, dump=dump, etrecord=etrecord)
    if output is not None:
        program.save(output)
    if ai_layer is not None:
        from ethorch.deploy.firmware import mlops as cbuild

        cbuild.write_ai_layer(program, ai_layer, described or cbuild.unnamed(program.target))
    if keep is not None:
        from ethorch.formats.files import write_whole

        write_whole(keep, chosen.to_toml().encode())
    written = [str(path) for path in (output, ai_layer) if path is not None]
    tried = program.suggestions() if suggest or not program.fits else None
    data = {
        "output": written[0],
        "ai_layer": None if ai_layer is None else str(ai_layer),
        **program.to_json(),
        "suggestions": None if tried is None else tried.to_json(),
    }

    def text() -> RenderableType:
        if markdown:
            from ethorch.report.markdown import markdown as summarized

            return summarized(data, Path(model).name, [Path(model).name, *samples.words()])
        line = f"wrote {' and '.join(written)}"
        return options.stacked(program.rich(), line) if tried is None else options.stacked(program.rich(), "", tried.rich(), line)

    return Answer(data, text, Status.DONE if program.fits else Status.COULD_NOT)


def _compile_to_tosa(
    model: str, samples: options.Samples, quantization: options.Quantization, output: Path | None, dump: Path | None
) -> Answer:
    """The answer of ``compile`` for a TOSA specification as the target."""
    from ethorch.models.user_code import find
    from ethorch.program.saving import check_writable
    from ethorch.targets.tosa_spec import TosaCompileSpec

    spec = TosaCompileSpec(quantization.target or "").dump_intermediate_artifacts_to(dump)
    find(model)
    if output is None or output.suffix not in (".tosa", ".pte", ".bpte"):
        raise SpecError(f"--output is {output}; with -t {quantization.target} it has to end in .tosa, .pte or .bpte.")
    check_writable(output)
    from ethorch.program.other_targets import compile_to_tosa, save

    program = compile_to_tosa(user_model(model, samples), spec, quantization.scheme or "int8")
    save(program, output)
    assert program.report is not None
    summary = program.report.summary()
    data = {"output": str(output), "target": str(spec.tosa_spec), "summary": summary}
    return Answer(data, lambda: f"{summary}\nwrote {output}")


@command("explain", PANEL)
def explain(
    model: options.Model,
    samples: options.Samples,
    quantization: options.Quantization,
    compiler: options.Compiler,
    operator: Annotated[str | None, typer.Option(help="Only operators with this in their name, e.g. softmax.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Only what runs on the CPU.")] = False,
    method: options.Method = None,
) -> Answer:
    """Why is an operator on the NPU, or not? Where each runs, what it costs, reasons, ways out. Takes a .pte or saved folder."""
    chosen = options.settings_of(quantization, compiler)
    if model.endswith(".pte") or (Path(model) / "model.pte").is_file():
        program = options.load_program(Path(model), method)
    else:
        program = compiled(chosen, model, samples)
        program = program[method or program.method]
    explanation = program.explain(operator=operator, cpu_only=cpu)
    return Answer(explanation.to_json(), explanation.rich)


@command("compare", PANEL)
def compare(
    model: options.Model,
    samples: options.Samples,
    quantization: options.Quantization,
    compiler: options.Compiler,
    inputs: options.Inputs = None,
) -> Answer:
    """Is the result right? One input through the float model, the quantized one and the NPU, operator by operator."""
    chosen = options.settings_of(quantization, compiler)
    program = compiled(chosen, model, samples)
    assert program.model is not None
    taken = program.model.example_inputs
    if inputs:
        from ethorch.cli.model_options import inputs_from

        taken = inputs_from(inputs, program.model.example_inputs, program.open_dims)
    found = program.compare(*taken)
    return Answer(found.to_json(), found.to_text, Status.DONE if found.bit_exact else Status.COULD_NOT)


@command("sensitivity", PANEL)
def sensitivity(
    model: options.Model,
    samples: options.Samples,
    settings: options.SettingsFile = None,
    scheme: options.Scheme = None,
    target: options.Target = None,
) -> Answer:
    """Which modules lose the accuracy? Each quantized alone, and each left in float alone, on the calibration samples."""
    chosen = options.settings_of(options.Quantization(settings=settings, target=target, scheme=scheme))
    from ethorch.models.user_code import find

    find(model)
    from ethorch.quantization.schemes import quantizer_for
    from ethorch.support.progress import stage
    from ethorch.tuning.sensitivity import sensitivity as measured

    user = user_model(model, samples)
    if user.quantized:
        raise SpecError(f"{model} is quantized already; sensitivity needs the float model.")
    with stage("measure modules") as step:
        found = measured(
            user.module, quantizer_for(chosen), list(user.calibration) or [user.example_inputs], progress=lambda *_: step()
        )
    return Answer(found.to_json(), found.rich, Status.INTERRUPTED if found.interrupted else Status.DONE)


def _values(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


@command("explore", PANEL)
def explore(
    model: options.Model,
    samples: options.Samples,
    budget: options.Budget,
    targets: Annotated[str | None, typer.Option(help="NPUs, with commas between; or all.", metavar="A,B")] = None,
    boards: Annotated[
        str | None, typer.Option(help="Boards, by name or TOML file; `ethorch boards` lists them.", metavar="A,B")
    ] = None,
    schemes: Annotated[str | None, typer.Option(help="int8, a16w8, a8w4, int8-per-tensor.", metavar="A,B")] = None,
    io: Annotated[str | None, typer.Option(help="Types of inputs and outputs.", metavar="A,B")] = None,
    memory_modes: Annotated[str | None, typer.Option(help="Sections of vela.ini.", metavar="A,B")] = None,
    system_configs: Annotated[str | None, typer.Option(help="Sections of vela.ini.", metavar="A,B")] = None,
    constants: Annotated[str | None, typer.Option(help="flash, sram.", metavar="A,B")] = None,
    arenas: Annotated[str | None, typer.Option(help="free, fast, sizes.", metavar="A,B")] = None,
    settings: options.SettingsFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A page with table and plot (.html), or .json.", metavar="FILE")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Keep finished variants there, and go on from them.", metavar="FILE.jsonl")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one for each CPU.", min=1)] = None,
    no_accuracy: Annotated[bool, typer.Option("--no-accuracy", help="Do not measure SQNR; quicker.")] = False,
) -> Answer:
    """Which NPU, which scheme, which memory? The product of all that is given, as a table and a plot with the Pareto front."""
    from ethorch.program.saving import check_folder

    chosen = options.settings_of(options.Quantization(settings=settings), budget=budget)
    axes: dict[str, Any] = {
        "target": _values(targets),
        "board": _values(boards),
        "scheme": _values(schemes),
        "io": _values(io),
        "memory_mode": _values(memory_modes),
        "system_config": _values(system_configs),
        "constants": _values(constants),
        "arena": _values(arenas),
    }
    if axes["target"] == ["all"]:
        from ethorch.targets.npus import TARGETS

        axes["target"] = list(TARGETS)
    if not any(axes.values()):
        raise SpecError("nothing is varied: give --targets, --boards, --schemes, --memory-modes, --constants or another list.")
    if output is not None:
        check_folder(output)
        if output.suffix not in (".html", ".htm", ".json"):
            raise SpecError(f"--output is {output}; it has to end in .html or .json.")
    from ethorch.models.user_code import find

    find(model)
    from ethorch.program.explore import explore as explored

    found = explored(
        user_model(model, samples),
        settings=chosen,
        workers=workers,
        resume=resume,
        accuracy=not no_accuracy,
        **{axis: values for axis, values in axes.items() if values is not None},
    )
    if output is not None:
        found.save(output)
    data = {**found.to_json(), "output": None if output is None else str(output)}
    holds = found.cheapest is not None or all(one.fits is None for one in found.variants)
    status = Status.INTERRUPTED if found.interrupted else Status.DONE if holds else Status.COULD_NOT
    return Answer(data, lambda: found.rich() if output is None else options.stacked(found.rich(), f"wrote {output}"), status)

"""Subcommands that bring a program onto a board: firmware, scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer
from ethorch.cli.command import command
from ethorch.cli.model_commands import compiled
from ethorch.support.errors import SpecError
from ethorch.support.wording import counted

PANEL = "Firmware"

Source = Annotated[
    str,
    typer.Argument(metavar="MODEL|FILE", help="A model as `ethorch compile` takes it, a .pte, or a saved folder."),
]


@command("firmware", PANEL)
def firmware(
    model: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="The project's folder.", metavar="DIR")],
    samples: options.Samples,
    quantization: options.Quantization,
    compiler: options.Compiler,
    name: Annotated[str, typer.Option(help="Stands before each symbol and file of the model.")] = "model",
    data: Annotated[str, typer.Option(help="incbin (files of bytes) or arrays (C arrays, for any compiler).")] = "incbin",
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAME", help="Only this entry point; several may be named. Default: all of the program."),
    ] = None,
    inputs: options.Inputs = None,
) -> Answer:
    """A C project that runs the model on a Cortex-M with an Ethos-U, without ExecuTorch; `python DIR/run.py` builds and runs it.

    Without --board it is for corstone-300, or of a U85 for corstone-320. A program of several methods becomes one project: a
    function for each (model_prefill_run, model_decode_run), the state that they share in one place, weights stored once. With
    --method NAME that method is alone in it, and its function is model_run.
    """
    chosen = options.settings_of(quantization, compiler)
    if model.endswith(".pte") or Path(model).is_dir():
        given = {**vars(quantization), **vars(compiler)}
        wrong = [f"--{key.replace('_', '-')}" for key, value in given.items() if value and key not in ("board", "settings")]
        if wrong:
            raise SpecError(f"{model} is compiled already, for {_target(model)}: {', '.join(wrong)} would have no effect on it.")
        program = options.load_program(Path(model), method[0] if method else None)
    else:
        program = compiled(chosen, model, samples)
    from ethorch.deploy.firmware.firmware import firmware as write

    samples_given = None
    if inputs:
        from ethorch.cli.model_options import inputs_for

        chosen_methods = method or program.methods
        if len(chosen_methods) > 1:
            raise SpecError(
                f"--inputs are of one method, and the project is of {', '.join(chosen_methods)}: say --method NAME, or call "
                "ethorch.firmware(program, folder, inputs=[(method, inputs), ...])."
            )
        samples_given = [inputs_for(program[chosen_methods[0]], inputs)]
    made = write(program, output, board=quantization.board, name=name, method=method, inputs=samples_given, data=data)
    others = [name for name in program.methods if name not in made.methods]
    note = f"\nMethods that are not in it: {', '.join(others)}." if others else ""
    return Answer(made.to_json(), lambda: f"{made}{note}")


def _target(model: str) -> str:
    return options.load_program(Path(model)).target or "the CPU"


@command("delegate", PANEL)
def delegate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the sources go.", metavar="DIR")],
) -> Answer:
    """Sources of the delegate that runs programs in full ExecuTorch on a Cortex-M, for your own build of ExecuTorch."""
    from ethorch.deploy.firmware.delegate import write_delegate

    files = write_delegate(output)
    data = {"output": str(output), "files": [path.name for path in files]}
    return Answer(data, lambda: f"wrote {counted(len(files), 'file')} to {output}: add_subdirectory() it; CMakeLists.txt says how")


@command("scratch", PANEL)
def scratch(program: options.Pte) -> Answer:
    """What full ExecuTorch needs of memory for a program: method pool, temporary pool, planned buffers, for each method."""
    from ethorch.figures.pools import pools

    found = pools(options.load_program(program).pte)
    return Answer([one.to_json() for one in found], lambda: "\n".join(map(str, found)))

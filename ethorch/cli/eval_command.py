"""The subcommand ``eval``: a data set through a program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer, Status
from ethorch.cli.command import command
from ethorch.cli.model_commands import compiled

PANEL = "A program"


@command("eval", PANEL)
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL|FILE.pte", help="A program, or a model as `ethorch compile` takes it.")],
    data: Annotated[
        list[Path],
        typer.Option("--data", "-d", help="Folder of samples, a folder for each class; or files.", metavar="DIR|FILE"),
    ],
    samples: options.Samples,
    quantization: options.Quantization,
    batch: Annotated[int, typer.Option(help="Samples that are handed on at once.", min=1)] = 32,
    workers: Annotated[int | None, typer.Option(help="Processes; default: threads of this one.", min=1)] = None,
    confusion: Annotated[bool, typer.Option("--confusion", help="Show who was taken for whom.")] = False,
) -> Answer:
    """How good is it on a data set? The simulated NPU, with the float and the quantized model beside it where they are known."""
    transform = samples.transform()
    chosen = options.settings_of(quantization)
    if model.endswith(".pte") or Path(model).is_dir():
        program = options.load_program(Path(model))
    else:
        program = compiled(chosen, model, replace(samples, limit=None))  # --limit is of --data
    from ethorch.program.evaluate import NPU
    from ethorch.program.evaluate import evaluate as evaluated

    found = evaluated(program, [str(path) for path in data], transform=transform, limit=samples.limit, batch=batch, workers=workers)

    def text() -> str:
        lines = [str(found)]
        if confusion and NPU in found.confusion:
            matrix = found.confusion[NPU]
            width = max(len(f"{count}") for row in matrix for count in row) + 1
            lines += ["", "NPU; a row for each label, a column for each answer:"]
            lines += ["".join(f"{count:{width}}" if count else " " * (width - 1) + "." for count in row) for row in matrix]
        return "\n".join(lines)

    return Answer(found.to_json(), text, Status.INTERRUPTED if found.interrupted else Status.DONE)

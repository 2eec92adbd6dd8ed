"""The subcommand compress: which weights, and how, until a budget holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ethorch.cli import options
from ethorch.cli.answers import Answer, Status
from ethorch.cli.command import command
from ethorch.cli.model_commands import PANEL, user_model
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from rich.console import RenderableType


@command("compress", PANEL)
def compress(
    model: options.Model,
    samples: options.Samples,
    quantization: options.Quantization,
    compiler: options.Compiler,
    max_flash: Annotated[
        str | None, typer.Option(help="Bytes that the .pte may have, e.g. 500K.", metavar="SIZE", rich_help_panel=options.BUDGET)
    ] = None,
    max_cycles: Annotated[
        int | None, typer.Option(help="Cycles of the NPU, by Vela's estimate.", min=1, rich_help_panel=options.BUDGET)
    ] = None,
    min_sqnr_db: options.MinSqnr = None,
    objective: Annotated[
        str,
        typer.Option(help="Saved where --min-sqnr-db is the only limit: cycles or bytes.", rich_help_panel=options.BUDGET),
    ] = "cycles",
    recipes: Annotated[
        str | None,
        typer.Option(help="To choose from: 32-values, 4-bits, 50%-zeros, 2:4, one-scale; some with +.", metavar="A,B"),
    ] = None,
    keep_weight: Annotated[
        list[str] | None,
        typer.Option(help="A weight, or a module of weights, that stays as it is. May be repeated.", metavar="NAME"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Apply the plan, and write the .pte there, or a folder.", metavar="FILE"),
    ] = None,
) -> Answer:
    """Fewer weight bytes and cycles: a recipe for each weight, planned with Vela's encoder, before anything is trained."""
    from ethorch.program.saving import check_writable
    from ethorch.targets.settings import bytes_of

    chosen = options.settings_of(quantization, compiler)
    if chosen.nhwc_io:
        raise SpecError("compress plans for inputs and outputs as the model has them: leave --nhwc-io out.")
    flash = bytes_of(max_flash, "--max-flash")
    if flash is None and max_cycles is None and min_sqnr_db is None:
        raise SpecError("nothing says how much to compress: give --max-flash, --max-cycles or --min-sqnr-db.")
    if output is not None:
        check_writable(output)
    from ethorch.models.user_code import find

    find(model)
    from ethorch.program.compile import compile as compile_model
    from ethorch.quantization.schemes import quantizer_for
    from ethorch.tuning.compress import apply, plan

    user = user_model(model, samples)
    inputs = list(user.calibration) or [user.example_inputs]
    found = plan(
        user.module,
        chosen.spec,
        inputs,
        max_flash=flash,
        max_cycles=max_cycles,
        min_sqnr_db=min_sqnr_db,
        objective=objective,
        recipes=None if recipes is None else [part.strip() for part in recipes.split(",") if part.strip()],
        leave_out=keep_weight or (),
        quantizer=quantizer_for(chosen),
    )
    if output is not None:
        made = apply(found.quantized, found.recipes, inputs)
        flags = [*chosen.vela_flags, *found.vela_flags]
        compile_model(made, user.example_inputs, settings=chosen, vela_flags=flags).save(output)
    data = {**found.to_json(), "output": None if output is None else str(output)}

    def text() -> RenderableType:
        return found.rich() if output is None else options.stacked(found.rich(), f"wrote {output}")

    return Answer(data, text, Status.DONE if found.reached else Status.COULD_NOT)

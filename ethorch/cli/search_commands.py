"""Subcommands that compile a model in many ways: explore, tune."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ethorch.cli import options, sources
from ethorch.cli.answers import Answer, Status, stacked
from ethorch.cli.command import command, option
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from ethorch.models.load import UserModel
    from ethorch.targets.settings import Settings

PANEL = "A model"


@command("explore", PANEL)
def explore(
    model: options.ModelName,
    samples: options.Samples,
    budget: options.Budget,
    choices: options.Choices,
    vary: Annotated[
        list[str],
        option(help="A setting and its values: scheme=int8,a16w8, target=all; repeatable.", metavar="FIELD=A,B"),
    ],
    output: Annotated[
        Path | None, option("--output", "-o", help="A page with table and plot (.html), or .json [none].", metavar="FILE")
    ] = None,
    resume: Annotated[Path | None, option(help="File of finished variants, to continue from.", metavar="FILE.jsonl")] = None,
    jobs: Annotated[int | None, option(help="Processes [one per CPU].", min=1)] = None,
) -> Answer:
    """Compare NPUs, schemes and memories: each combination as a row of a table."""
    from ethorch.program.saving import check_folder
    from ethorch.targets.assignments import parse_axes

    settings = options.settings_of(choices, samples=samples, budget=budget)
    axes = parse_axes(vary)
    if output is not None:
        check_folder(output)
        if output.suffix not in (".html", ".htm", ".json"):
            raise SpecError(f"--output is {output}; it has to end in .html or .json.")
    user = sources.read_one_model(model, settings)
    from ethorch.program.explore import explore as compile_variants

    found = compile_variants(user, vary=axes, settings=settings, jobs=jobs, resume=resume)
    if output is not None:
        found.save(output)
    data = {**found.to_json(), "output": None if output is None else str(output)}
    holds = found.cheapest is not None or all(one.fits is None for one in found.variants)
    status = Status.INTERRUPTED if found.interrupted else Status.DONE if holds else Status.NO
    return Answer(data, lambda: found.rich() if output is None else stacked(found.rich(), f"wrote {output}"), status)


@command("tune", PANEL)
def tune(
    model: options.ModelName,
    samples: options.Samples,
    budget: options.Budget,
    choices: options.Choices,
    goal: Annotated[
        str,
        option(help="accuracy, flash, cycles, or least --metric [accuracy].", metavar="GOAL"),
    ] = "accuracy",
    metric: Annotated[str | None, option(help="A function of float and quantized outputs.", metavar="FILE.py:NAME")] = None,
    recipe: Annotated[
        list[str] | None,
        option(help="For weights: 32-values, 4-bits, 50%-zeros, 2:4, one-scale.", metavar="RECIPE"),
    ] = None,
    keep: Annotated[list[str] | None, option(help="A weight or module that stays as it is; repeatable.", metavar="NAME")] = None,
    output: Annotated[
        Path | None, option("--output", "-o", help="The program: .pte or a folder [only the table].", metavar="FILE")
    ] = None,
) -> Answer:
    """Raise accuracy, or shrink weights; without -o, print what would be changed. Exit status 3: the goal is missed."""
    from ethorch.program.saving import check_writable, describe_saved

    settings = options.settings_of(choices, samples=samples, budget=budget)
    if output is not None:
        check_writable(output)
    least: str | float = goal
    with suppress(ValueError):
        least = float(goal)
    user = sources.read_one_model(model, settings)
    function = None if metric is None else read_function(metric)
    from ethorch.program.tune import ACCURACY, check_goal, search

    if goal == ACCURACY and function is None and settings.min_sqnr_db is None and output is None:
        return _sensitivity(user, settings)
    check_goal(least, function, settings)
    found = search(user, settings, least, function, recipes=recipe, keep=keep or ())
    if output is not None:
        from ethorch.program.compile import compile

        compile(found.model, settings=found.settings).save(output)
    data = {"goal": goal, "reached": found.reached, **found.result.to_json(), "output": None if output is None else str(output)}
    lines = [found.result.rich()] if output is None else [found.result.rich(), describe_saved(output)]
    return Answer(data, lambda: stacked(*lines), Status.DONE if found.reached else Status.NO)


def _sensitivity(user: UserModel, settings: Settings) -> Answer:
    """Which modules lose the accuracy: each quantized alone, and each left in float alone."""
    from ethorch.quantization.schemes import quantizer_for
    from ethorch.support.progress import stage
    from ethorch.tuning.module_sensitivity import sensitivity

    if user.quantized:
        raise SpecError("the model is quantized already; goal 'accuracy' needs the float model.")
    samples = list(user.calibration) or [user.example_inputs]
    with stage("measure modules") as step:
        found = sensitivity(user.module, quantizer_for(settings), samples, progress=lambda *_: step())
    return Answer(found.to_json(), found.rich, Status.INTERRUPTED if found.interrupted else Status.DONE)


def read_function(name: str) -> Any:
    """Return the function that ``FILE.py:NAME`` or ``package.module:NAME`` names.

    Raises:
        SpecError: There is none of this name, or it is no function.
    """
    from ethorch.models.load import read_object

    found = read_object(name)
    if not callable(found):
        raise SpecError(f"{name} is {type(found).__name__}; expected a function.")
    return found

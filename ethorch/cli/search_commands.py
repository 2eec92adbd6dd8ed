"""Subcommands that compile a model with several settings: explore, tune."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ethorch.cli import options, sources
from ethorch.cli.answers import Answer, Status, stack
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
        option(help="Setting and values, e.g. scheme=int8,a16w8; repeatable.", metavar="FIELD=A,B"),
    ],
    output: Annotated[
        Path | None, option("--output", "-o", help="A .html or .json file for the results [none].", metavar="FILE")
    ] = None,
    resume: Annotated[
        Path | None,
        option(help="File that stores finished variants; an interrupted run continues from it.", metavar="FILE.jsonl"),
    ] = None,
    jobs: Annotated[int | None, option(help="Number of worker processes [one per CPU].", min=1)] = None,
) -> Answer:
    """Compile a model with every combination of settings. Exit status 3: no variant meets the budgets."""
    from ethorch.program.saving import check_file
    from ethorch.targets.assignments import parse_axes

    settings = options.settings_of(choices, samples=samples, budget=budget)
    axes = parse_axes(vary)
    if output is not None:
        check_file(output)
        if output.suffix not in (".html", ".htm", ".json"):
            raise SpecError(f"--output: expected the suffix .html or .json, got {output}.")
    user = sources.read_one_model(model, settings)
    from ethorch.program.explore import explore as compile_variants

    exploration = compile_variants(user, vary=axes, settings=settings, jobs=jobs, resume=resume)
    if output is not None:
        exploration.save(output)
    data = {**exploration.to_json(), "output": None if output is None else str(output)}
    holds = exploration.cheapest is not None or all(variant.fits is None for variant in exploration.variants)
    status = Status.INTERRUPTED if exploration.interrupted else Status.DONE if holds else Status.NO
    return Answer(data, lambda: exploration.rich() if output is None else stack(exploration.rich(), f"Saved {output}"), status)


@command("tune", PANEL)
def tune(
    model: options.ModelName,
    samples: options.Samples,
    budget: options.Budget,
    choices: options.Choices,
    goal: Annotated[
        str,
        option(help="Goal: accuracy, flash, cycles or minimum --metric [accuracy].", metavar="GOAL"),
    ] = "accuracy",
    metric: Annotated[str | None, option(help="Function of the float and quantized outputs.", metavar="FILE.py:NAME")] = None,
    recipe: Annotated[
        list[str] | None,
        option(help="Weight compression to try, e.g. 32-values or 2:4; repeatable.", metavar="RECIPE"),
    ] = None,
    keep: Annotated[list[str] | None, option(help="Weight or module to leave unchanged; repeatable.", metavar="NAME")] = None,
    output: Annotated[
        Path | None, option("--output", "-o", help="Output program: a .pte or a folder [none].", metavar="FILE")
    ] = None,
) -> Answer:
    """Increase accuracy or compress weights. Without -o, only print changes. Exit status 3: goal missed.

    For the goal accuracy without -o, --metric or --min-sqnr-db, print each module's sensitivity.
    """
    from ethorch.program.saving import check_writable, describe_saved

    settings = options.settings_of(choices, samples=samples, budget=budget)
    if output is not None:
        check_writable(output)
    least: str | float = goal
    with suppress(ValueError):
        least = float(goal)
    user = sources.read_one_model(model, settings)
    function = None if metric is None else _read_metric(metric)
    from ethorch.program.tune import ACCURACY, CYCLES, FLASH, check_goal, search

    if (recipe or keep) and goal not in (FLASH, CYCLES):
        raise SpecError(f"--recipe and --keep require the goal {FLASH} or {CYCLES}, got the goal {goal}.")
    if goal == ACCURACY and function is None and settings.min_sqnr_db is None and output is None:
        return _sensitivity(user, settings)
    check_goal(least, function, settings)
    tuned = search(user, settings, least, function, recipes=recipe, keep=keep or ())
    if output is not None:
        from ethorch.program.compile import compile

        compile(tuned.model, settings=tuned.settings).save(output)
    data = {"goal": goal, "reached": tuned.reached, **tuned.result.to_json(), "output": None if output is None else str(output)}
    lines = [tuned.result.rich()] if output is None else [tuned.result.rich(), describe_saved(output)]
    return Answer(data, lambda: stack(*lines), Status.DONE if tuned.reached else Status.NO)


def _sensitivity(user: UserModel, settings: Settings) -> Answer:
    from ethorch.quantization.schemes import quantizer_for
    from ethorch.support.progress import stage
    from ethorch.tuning.module_sensitivity import sensitivity

    if user.quantized:
        raise SpecError("goal 'accuracy' requires the float model, got a quantized model.")
    samples = list(user.calibration) or [user.example_inputs]
    with stage("measure modules") as step:
        losses = sensitivity(user.module, quantizer_for(settings, user.module), samples, progress=lambda *_: step())
    return Answer(losses.to_json(), losses.rich, Status.INTERRUPTED if losses.interrupted else Status.DONE)


def _read_metric(name: str) -> Callable[..., Any]:
    from ethorch.models.user_code import convert_user_errors

    function = read_function(name)

    @functools.wraps(function)
    def metric(*arguments: Any) -> Any:
        with convert_user_errors(f"the metric {name} failed"):
            return function(*arguments)

    return metric


def read_function(name: str) -> Any:
    """Import and return the function named ``FILE.py:NAME`` or ``package.module:NAME``.

    Raises:
        SpecError: The name does not exist or is not a function.
    """
    if ":" not in name:
        raise SpecError(f"--metric: expected FILE.py:NAME or package.module:NAME, got {name!r}.")
    from ethorch.models.load import read_object

    function = read_object(name)
    if not callable(function):
        raise SpecError(f"{name}: expected a function, got {type(function).__name__}.")
    return function

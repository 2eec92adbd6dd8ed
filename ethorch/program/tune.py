from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ethorch.models.load import UserModel, in_eval_mode
from ethorch.program.build import build_program, single_method
from ethorch.program.compile import Model, compile, user_model
from ethorch.program.program import Program
from ethorch.quantization.schemes import CONFIGS, quantizer_for
from ethorch.support.errors import SpecError, unknown_name
from ethorch.support.exclusive import exclusive
from ethorch.support.keywords import suggest_keywords
from ethorch.support.metrics import Metric
from ethorch.support.progress import stage
from ethorch.support.progress_display import display_progress
from ethorch.support.wording import shorten as quoted
from ethorch.targets.settings import NCHW, Settings
from ethorch.tuning.compress import Plan, apply, plan
from ethorch.tuning.precision_search import MixedPrecision, mixed_precision

#: Named goals for ``tune``.
GOALS = ACCURACY, FLASH, CYCLES = "accuracy", "flash", "cycles"


@dataclass(frozen=True)
class Tuning:
    """The result of a search for 16-bit modules or compressed weights, before compilation.

    Attributes:
        model: The model to compile, and its samples.
    """

    model: UserModel
    settings: Settings
    result: MixedPrecision | Plan
    reached: bool


@suggest_keywords
def tune(
    model: Model,
    example_inputs: Any = None,
    *,
    goal: str | float,
    metric: Metric | None = None,
    calibration: Any = None,
    settings: Settings | None = None,
    progress: bool | None = None,
) -> Program:
    """Compile a program that reaches a goal. If the goal cannot be reached, return the closest program and log a warning.

    ::

        program = ethorch.tune(model, image, goal="accuracy", calibration=images, settings=Settings(min_sqnr_db=30))

    Args:
        model, example_inputs, calibration, progress: See ``ethorch.compile``. Models with several methods are not supported.
        goal: ``"accuracy"`` uses 16-bit activations for the most sensitive modules until ``settings.min_sqnr_db`` is met. A number
            uses 16-bit activations until ``metric`` returns at least this number. ``"flash"`` and ``"cycles"`` compress weights
            (fewer values, zeros, 2:4 sparsity) until ``settings.flash`` or ``settings.latency_ms`` is met, or as much as
            ``settings.min_sqnr_db`` permits. The model is not trained. See ``ethorch.tuning.compress`` for training.
        metric: Function that receives the outputs of the float model and of the quantized model, as two lists with an entry for
            each calibration sample. Larger values are better.
        settings: Compilation settings, including the budgets.

    Raises:
        SpecError: The goal is unknown, its budget or metric is missing, or an argument is not supported for the goal.
        EthorchError: See ``ethorch.compile``.
    """
    chosen = settings or Settings()
    check_goal(goal, metric, chosen)
    with exclusive(), display_progress(progress):
        user = user_model(model, example_inputs, calibration, shapes=chosen.shapes)
        tuning = search(user, chosen, goal, metric)
        return compile(tuning.model, settings=tuning.settings, progress=progress)


def check_goal(goal: str | float, metric: Metric | None, settings: Settings) -> None:
    """Raise SpecError if a goal is unknown, or does not match the metric and settings."""
    if isinstance(goal, (int, float)) and not isinstance(goal, bool):
        if metric is None:
            raise SpecError(f"goal={goal} requires a metric, got None. Pass a function as metric.")
        return
    if not isinstance(goal, str):
        raise SpecError(f"goal: expected one of {', '.join(GOALS)}, or the minimum value of metric; got {quoted(goal)}.")
    if goal not in GOALS:
        raise unknown_name("goal", goal, GOALS)
    if metric is not None:
        raise SpecError(f"goal: expected a number (the minimum value of metric), got {goal!r}. Pass a number, or remove metric.")
    budget = {ACCURACY: None, FLASH: settings.flash_limit, CYCLES: settings.latency_ms}[goal]
    if budget is None and settings.min_sqnr_db is None:
        also = {ACCURACY: "", FLASH: "flash or ", CYCLES: "latency_ms or "}[goal]
        raise SpecError(f"goal {goal!r} requires a budget, got none. Set {also}min_sqnr_db.")
    if goal != ACCURACY and settings.io_layout != NCHW:
        raise SpecError(f"goal={goal!r} does not support io_layout={settings.io_layout!r}. Remove io_layout.")


def search(
    user: UserModel,
    settings: Settings,
    goal: str | float,
    metric: Metric | None = None,
    *,
    recipes: Sequence[str] | None = None,
    keep: Sequence[str] = (),
) -> Tuning:
    """Search for 16-bit modules or compressed weights that reach a goal.

    Args:
        goal, metric: See ``tune``.
        recipes: Recipes to try for ``flash`` and ``cycles``, such as ``["32-values", "2:4"]``.
        keep: Names of weights or modules not to compress.
    """
    samples = list(user.calibration) or [user.example_inputs]
    with in_eval_mode(user.module):
        if goal in (FLASH, CYCLES):
            return _search_weights(user, settings, str(goal), samples, recipes, keep)
        return _search_modules(user, settings, None if isinstance(goal, str) else float(goal), metric, samples)


def _search_modules(
    user: UserModel, settings: Settings, least: float | None, metric: Metric | None, samples: Sequence[Any]
) -> Tuning:
    if user.quantized:
        raise SpecError("accuracy goals require a float model, got a quantized model.")
    if settings.scheme not in CONFIGS:
        raise SpecError(f"accuracy goals require a named scheme ({', '.join(CONFIGS)}), got a QuantizationConfig.")
    with stage("raise modules to 16 bits") as step:
        mixed = mixed_precision(
            user.module,
            quantizer_for(settings, user.module),
            samples,
            target_sqnr_db=settings.min_sqnr_db if metric is None else least,
            metric=metric,
            progress=lambda _: step(),
        )
    raised = dict.fromkeys(mixed.raised, "a16w8")
    return Tuning(user, settings.with_(modules={**settings.modules, **raised}), mixed, mixed.reached)


def _search_weights(
    user: UserModel, settings: Settings, goal: str, samples: Sequence[Any], recipes: Sequence[str] | None, keep: Sequence[str]
) -> Tuning:
    flash = cycles = None
    if goal == FLASH and settings.flash_limit is not None:
        record = build_program(single_method(user), settings)
        flash = max(settings.flash_limit - (record.memory.flash_bytes - len(record.pte)), 1)
    if goal == CYCLES and settings.latency_ms is not None:
        record = build_program(single_method(user), settings)
        others = (record.milliseconds or 0.0) - 1000 * (record.total_cycles or 0) / record.core_clock_hz
        cycles = max(math.floor((settings.latency_ms - others) / 1000 * record.core_clock_hz), 1)
    weights_plan = plan(
        user.module,
        settings.spec,
        samples,
        max_flash=flash,
        max_cycles=cycles,
        min_sqnr_db=settings.min_sqnr_db,
        objective="bytes" if goal == FLASH else "cycles",
        recipes=recipes,
        leave_out=keep,
        quantizer=quantizer_for(settings, user.module),
    )
    compressed: nn.Module = apply(weights_plan.quantized, weights_plan.recipes, samples)
    flags = [*settings.vela_flags, *weights_plan.vela_flags]
    model = replace(user, module=compressed, quantized=True)
    return Tuning(model, settings.with_(vela_flags=flags), weights_plan, weights_plan.reached)

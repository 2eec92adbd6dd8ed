from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from ethorch.quantization.calibration_checks import mute_sample_warnings
from ethorch.quantization.config import (
    QuantizationConfig,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from ethorch.quantization.prepare import convert
from ethorch.quantization.quantizer import EthosUQuantizer
from ethorch.support import tables
from ethorch.support.errors import QuantizationError
from ethorch.support.exclusive import exclusive
from ethorch.support.metrics import Metric, lowest_sqnr_db, sqnr_db
from ethorch.support.quiet import quiet
from ethorch.support.text_files import finite
from ethorch.support.wording import count_noun
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tuning.module_sensitivity import sensitivity
from ethorch.tuning.sample_runs import (
    FAKE,
    NPU,
    Inputs,
    check_judge,
    compute_outputs,
    copy_state,
    export_copy,
    outputs_on_npu,
    reset,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """The costs and accuracy after raising the precision of one more module. The first step uses the base config.

    Attributes:
        module: Module whose precision was raised, or an empty string for the first step.
        metric: SQNR in dB, or the user's metric.
        cycles: Vela's cycle estimate, summed over all delegates.
        sram_bytes: Largest peak SRAM usage of any delegate.
        constant_bytes: Size of the ``.pte``.
        delegates, cpu_operators: Number of delegates, and number of CPU operators.
    """

    module: str
    metric: float
    cycles: int
    sram_bytes: int
    constant_bytes: int
    delegates: int
    cpu_operators: int


@dataclass(frozen=True)
class MixedPrecision:
    """The result of ``ethorch.tuning.mixed_precision``.

    Attributes:
        model: Quantized model of the best step, ready for torch.export and lowering.
        raised: Names of modules, and of operators outside modules, with raised precision, most sensitive first. They are valid keys
            for the argument ``modules`` of ``ethorch.compile``.
        steps: Steps in order, without those of skipped modules. See :class:`Step`.
        reached: Whether ``model`` meets the accuracy target and ``max_cycles``.
        unit: Heading of the metric in tables. ``dB`` for SQNR.
    """

    model: GraphModule
    raised: tuple[str, ...]
    steps: tuple[Step, ...]
    reached: bool
    unit: str = "metric"

    @property
    def best(self) -> Step:
        """The step that produced ``model``."""
        return self.steps[len(self.raised)]

    def table(self) -> str:
        """Return the steps and the selected step as Markdown."""
        lines = [
            f"| raised | {self.unit} | cycles | SRAM bytes | .pte bytes | delegates | CPU operators |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {s.module or '(none)'} | {s.metric:.2f} | {s.cycles} | {s.sram_bytes} | {s.constant_bytes} | {s.delegates} | "
            f"{s.cpu_operators} |"
            for s in self.steps
        ]
        goal = "the goal is reached" if self.reached else "the goal is NOT reached"
        return "\n".join([*lines, "", f"chosen: {len(self.raised)} raised, {self.unit} {self.best.metric:.2f}; {goal}"])

    __str__ = table

    def rich(self) -> RenderableType:
        """Return the steps and the selected step as a Rich table."""
        from rich.console import Group

        table = tables.table()
        for name in ("raised", self.unit, "cycles", "SRAM bytes", ".pte bytes", "delegates", "CPU operators"):
            table.add_column(name, justify="left" if name == "raised" else "right")
        for step in self.steps:
            figures = (step.cycles, step.sram_bytes, step.constant_bytes, step.delegates, step.cpu_operators)
            table.add_row(step.module or "(none)", f"{step.metric:.2f}", *(f"{figure:,}" for figure in figures))
        goal = "the goal is reached" if self.reached else "the goal is NOT reached"
        return Group(table, "", f"chosen: {len(self.raised)} raised, {self.unit} {self.best.metric:.2f}; {goal}")

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {"raised": list(self.raised), "reached": self.reached, "steps": finite([asdict(step) for step in self.steps])}


@exclusive()
@quiet()
def mixed_precision(
    model: nn.Module,
    spec: EthosUCompileSpec | EthosUQuantizer,
    samples: Sequence[Inputs],
    *,
    target_sqnr_db: float | None = None,
    max_cycles: int | None = None,
    metric: Metric | None = None,
    base: QuantizationConfig | None = None,
    to: str = "int16",
    modules: Sequence[str] | None = None,
    judge: str = FAKE,
    progress: Callable[[Step], None] | None = None,
) -> MixedPrecision:
    """Raise the precision of the most sensitive modules until the accuracy reaches a target.

    The result is the first step that reaches the target, or else the step with the best metric within ``max_cycles``. A missed
    target or exceeded ``max_cycles`` causes a warning.

    Args:
        model: Module in evaluation mode, or a graph module from torch.export.
        spec: Compile spec, or a configured quantizer, whose explicit settings are not changed.
        samples: Input tuples for calibration and measurement.
        target_sqnr_db: Value of the metric at which the search stops.
        max_cycles: Upper limit for Vela's cycle estimate, without CPU operators. Modules whose steps exceed it are skipped.
        metric: Metric to use instead of SQNR. See ``ethorch.tuning.sensitivity``.
        base: Global config if ``spec`` is not a quantizer. Default: int8 with per-channel weights.
        to: Higher precision: ``int16`` (16-bit activations, 8-bit weights) or ``float`` (on the CPU).
        modules: Names of the modules or FX nodes to consider. See ``ethorch.tuning.sensitivity``.
        judge: See ``ethorch.tuning.sensitivity``. The order of modules is always determined with ``"quantized"``.
        progress: Function called with each step.

    Raises:
        QuantizationError: ``target_sqnr_db`` and ``max_cycles`` are None, ``samples`` is empty, ``to`` or ``judge`` is
            unknown, or a named module is not quantized.
    """
    check_judge(judge)
    if target_sqnr_db is None and max_cycles is None:
        raise QuantizationError("mixed_precision.no_target", "expected target_sqnr_db or max_cycles, got neither.")
    if to not in ("int16", "float"):
        raise QuantizationError("mixed_precision.to", f"expected to='int16' or 'float', got {to!r}")
    if not samples:
        raise QuantizationError("quantize.no_samples", "expected samples, got none. Pass a few dozen representative inputs.")
    unit = "dB" if metric in (None, sqnr_db) else "metric"
    metric = metric or lowest_sqnr_db
    if isinstance(spec, EthosUQuantizer):
        quantizer, target = spec, EthosUCompileSpec.of(spec.compile_spec)
    else:
        quantizer, target = EthosUQuantizer(spec).set_global(base or get_symmetric_quantization_config()), spec
    graph = export_copy(model, samples[0])
    state = copy_state(graph)
    reference = compute_outputs(export_copy(graph, samples[0]), samples, state)
    higher = get_symmetric_a16w8_quantization_config() if to == "int16" else None

    operators: set[str] = set()  # operators outside modules that can be raised

    def with_raised(names: Sequence[str]) -> EthosUQuantizer:
        copied, settings = copy.copy(quantizer), quantizer.settings
        copied.settings = replace(settings, names=dict(settings.names), module_names=dict(settings.module_names))
        for name in names:
            (copied.set_node_name if name in operators else copied.set_module_name)(name, higher)
        return copied

    def overrides_setting(name: str) -> bool:
        before, after = (each.settings.match_explicit(graph) for each in (quantizer, with_raised([name])))
        matches = [(before(node), after(node)) for node in graph.graph.nodes]
        return any(old is not None and new is not None and new[0] is not old[0] for old, new in matches)

    def attempt(raised: Sequence[str]) -> tuple[GraphModule, Step]:
        prepared = prepare_pt2e(export_copy(graph, samples[0]), with_raised(raised))
        compute_outputs(prepared, samples, state)  # calibrates
        converted = convert(prepared)
        reset(converted, state)
        build = build_pte(converted, samples[0], target)
        outputs = outputs_on_npu(build, converted, samples) if judge == NPU else compute_outputs(converted, samples, state)
        reset(converted, state)
        return converted, price(build, raised[-1] if raised else "", metric(reference, outputs))

    goal = _Goal(target_sqnr_db, max_cycles)
    chosen_model, step = attempt(())
    steps: list[Step] = [step]
    raised: list[str] = []
    best = 0  # index in steps
    if progress:
        progress(step)
    if not goal.accurate(step):
        with mute_sample_warnings():
            order = sensitivity(graph, with_raised(()), samples, metric, modules=modules)
            if order.interrupted:
                raise KeyboardInterrupt
        operators |= {row.module for row in order.rows if row.operator}
        exported = {node.name for node in graph.graph.nodes}  # users cannot name operators created by passes
        for row in order.rows:
            if (row.operator and row.module not in exported) or overrides_setting(row.module):
                continue
            with mute_sample_warnings():
                candidate, step = attempt([*raised, row.module])
            if not goal.affordable(step):
                continue  # a cheaper module may still fit
            raised.append(row.module)
            steps.append(step)
            if goal.prefers(step, steps[best]):
                chosen_model, best = candidate, len(raised)
            if progress:
                progress(step)
            if goal.accurate(step):
                break
    result = MixedPrecision(chosen_model, tuple(raised[:best]), tuple(steps), goal.is_reached_by(steps[best]), unit)
    if not result.reached:
        logger.warning("mixed_precision: %s [mixed_precision.not_reached]", goal.shortfall(result))
    return result


@dataclass(frozen=True)
class _Goal:
    target: float | None
    max_cycles: int | None

    def accurate(self, step: Step) -> bool:
        return self.target is not None and step.metric >= self.target

    def affordable(self, step: Step) -> bool:
        return self.max_cycles is None or step.cycles <= self.max_cycles

    def is_reached_by(self, step: Step) -> bool:
        return self.affordable(step) and (self.target is None or self.accurate(step))

    def prefers(self, step: Step, best: Step) -> bool:
        if math.isnan(step.metric):
            return False
        return step.metric > best.metric or math.isnan(best.metric) or not self.affordable(best)

    def shortfall(self, result: MixedPrecision) -> str:
        step, raised = result.best, ", ".join(result.raised) or "none"
        if not self.affordable(step):
            return (
                f"expected at most {self.max_cycles} cycles, got {step.cycles} before raising the precision of any module. "
                "Increase max_cycles."
            )
        limit = "" if self.max_cycles is None else f" within {self.max_cycles} cycles"
        return (
            f"expected a metric of at least {self.target:.2f}{limit}, got {step.metric:.2f}. Raised precision: {raised}; "
            f"{count_noun(len(result.steps), 'step')} tried."
        )


def price(build: Build, module: str, figure: float) -> Step:
    performances: list[Any] = [delegate.performance for delegate in build.delegates]
    return Step(
        module,
        figure,
        sum(p.total_cycles for p in performances),
        max((p.sram_bytes for p in performances), default=0),
        len(build.pte),
        len(performances),
        len(build.partition.refusals),
    )

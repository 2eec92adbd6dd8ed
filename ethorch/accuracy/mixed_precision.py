"""Accuracy for cycles: the modules that lose most are raised to int16 activations, or left in float, until a target holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import flow
from ethorch.compile_spec import EthosUCompileSpec
from ethorch.errors import QuantizationError
from ethorch.quantization_config import (
    QuantizationConfig,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from ethorch.quantize.sensitivity import sensitivity
from ethorch.quantize.switches import Inputs, Metric, exported, sqnr_db
from ethorch.quantizer import EthosUQuantizer


@dataclass(frozen=True)
class Step:
    """The model after one more module was raised; the first step is the model as the base scheme has it.

    Attributes:
        module: what was raised; empty for the first step.
        metric: SQNR in dB, or the user's figure, on the samples.
        cycles: Vela's estimate of total cycles, all delegates together.
        sram_bytes: peak use of SRAM, the largest of the delegates'.
        constant_bytes: weights and command streams, of the .pte as a whole.
        delegates: parts on the NPU.
        cpu_operators: operators the NPU does not run.
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
    """What ``ethorch.mixed_precision`` chose.

    Attributes:
        model: quantized, ready for torch.export and lowering.
        raised: names of the modules that were raised, worst first.
        steps: the price of each.
        reached: does the target hold?
    """

    model: GraphModule
    raised: tuple[str, ...]
    steps: tuple[Step, ...]
    reached: bool

    def table(self) -> str:
        """The steps as Markdown."""
        lines = [
            "| raised | metric | cycles | SRAM bytes | .pte bytes | delegates | CPU operators |", "|---|--:|--:|--:|--:|--:|--:|",
        ]  # fmt: skip
        lines += [
            f"| {s.module or '(none)'} | {s.metric:.2f} | {s.cycles} | {s.sram_bytes} | {s.constant_bytes} | {s.delegates} | "
            f"{s.cpu_operators} |"
            for s in self.steps
        ]
        return "\n".join(lines)

    __str__ = table


def mixed_precision(
    model: nn.Module, spec: EthosUCompileSpec, samples: Sequence[Inputs], *, target_sqnr_db: float | None = None,
    max_cycles: int | None = None, metric: Metric | None = None, base: QuantizationConfig | None = None, to: str = "int16",
    modules: Sequence[str] | None = None, progress: Callable[[Step], None] | None = None,
) -> MixedPrecision:  # fmt: skip
    """Raise the modules that lose most until the accuracy is reached or the cycles are spent.

    Args:
        model: in eval mode, or a graph module from torch.export.
        spec: what is compiled for; each step is compiled for it to know its price.
        samples: input tuples; ranges come from them and the metric is measured on them.
        target_sqnr_db: stop when the metric is at least this.
        max_cycles: stop before Vela's estimate exceeds this.
        metric: as for ``ethorch.sensitivity``; ``target_sqnr_db`` is then in its unit.
        base: scheme of what is not raised; int8, weights per channel, by default.
        to: ``int16`` (16-bit activations, 8-bit weights) or ``float`` (on the CPU).
        modules: names that may be raised; by default the innermost modules in which something is quantized.
        progress: called with each step.

    Raises:
        QuantizationError: neither a target nor a limit was given, or ``to`` is something else.
    """
    if target_sqnr_db is None and max_cycles is None:
        raise QuantizationError(
            "mixed_precision.no_target", "mixed_precision needs target_sqnr_db, max_cycles, or both: it would raise every module"
        )
    if to not in ("int16", "float"):
        raise QuantizationError("mixed_precision.to", f"to={to!r}: modules can be raised to 'int16' or 'float'")
    base, metric = base or get_symmetric_quantization_config(), metric or sqnr_db
    graph = exported(model, samples[0]) if samples else None
    if graph is None:
        raise QuantizationError("quantize.no_samples", "no samples were given: ranges and losses are measured on them")
    with torch.no_grad():
        reference = [graph(*inputs) for inputs in samples]
    higher = get_symmetric_a16w8_quantization_config() if to == "int16" else None

    def attempt(raised: Sequence[str]) -> tuple[GraphModule, Step]:
        quantizer = EthosUQuantizer(spec).set_global(base)
        for name in raised:
            quantizer.set_module_name(name, higher)
        prepared = prepare_pt2e(exported(graph, samples[0]), quantizer)
        with torch.no_grad():
            for inputs in samples:
                prepared(*inputs)
            converted = convert_pt2e(prepared)
            figure = metric(reference, [converted(*inputs) for inputs in samples])
        return converted, price(converted, spec, samples[0], raised[-1] if raised else "", figure)

    found, step = attempt(())
    steps: list[Step] = [step]
    raised: list[str] = []
    if progress:
        progress(step)
    if not _enough(step, target_sqnr_db):
        order = sensitivity(graph, EthosUQuantizer(spec).set_global(base), samples, metric, modules=modules)
        for row in order.rows:
            candidate, step = attempt([*raised, row.module])
            if max_cycles is not None and step.cycles > max_cycles:
                continue  # too dear; a cheaper one may still fit
            found, raised = candidate, [*raised, row.module]
            steps.append(step)
            if progress:
                progress(step)
            if _enough(step, target_sqnr_db):
                break
    within = max_cycles is None or steps[-1].cycles <= max_cycles
    reached = within and (target_sqnr_db is None or _enough(steps[-1], target_sqnr_db))
    return MixedPrecision(found, tuple(raised), tuple(steps), reached)


def _enough(step: Step, target: float | None) -> bool:
    return target is not None and step.metric >= target


def price(converted: GraphModule, spec: EthosUCompileSpec, inputs: Inputs, module: str, figure: float) -> Step:
    """What the quantized model costs on the NPU, from compiling it."""
    built = flow.build(converted, inputs, spec)
    performances: list[Any] = [delegate.performance for delegate in built.delegates]
    return Step(
        module, figure, sum(p.total_cycles for p in performances), max((p.sram_bytes for p in performances), default=0),
        len(built.pte), len(performances), len(built.partition.refusals),
    )  # fmt: skip

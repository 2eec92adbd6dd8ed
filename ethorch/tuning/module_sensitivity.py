"""The accuracy that each module and each operator outside modules costs: quantized alone, and left in float alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ethorch.quantization.config import QuantizationConfig, get_symmetric_quantization_config
from ethorch.quantization.quantizer import TOSAQuantizer
from ethorch.support import tables
from ethorch.support.errors import QuantizationError
from ethorch.support.exclusive import exclusive
from ethorch.support.metrics import Metric, sqnr_db
from ethorch.targets.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.tuning.sample_runs import FAKE, NPU, Inputs, check_judge
from ethorch.tuning.switched_graph import Switched

if TYPE_CHECKING:
    from rich.console import RenderableType


_INTERRUPTED = "Interrupted: the modules so far."


@dataclass(frozen=True)
class ModuleSensitivity:
    """One module, or one operator that is called outside the innermost modules.

    Attributes:
        module: its name, e.g. ``features.3.conv``; the FX node's name of an operator, e.g. ``log``.
        only: the metric if nothing but this module is quantized. Low: it alone does damage.
        all_but: the metric if everything else is quantized.
        gain: ``all_but`` minus the metric of the whole model quantized: what leaving it in float (or int16) brings.
        operator: ATen name and source line of an operator, e.g. ``aten.log.default, net.py:41``; empty for a module.
    """

    module: str
    only: float
    all_but: float
    gain: float
    operator: str = ""

    @property
    def label(self) -> str:
        """The module's name, or the operator's with its ATen name and source line."""
        return f"{self.module} ({self.operator})" if self.operator else self.module


@dataclass(frozen=True)
class Sensitivity:
    """Result of ``ethorch.tuning.sensitivity``: modules and operators, those with the largest gain first.

    Attributes:
        whole: the metric with everything quantized.
        rows: one per module, and per operator that is called outside the innermost modules.
        interrupted: somebody stopped it; the rows are of the modules so far.
    """

    whole: float
    rows: tuple[ModuleSensitivity, ...]
    interrupted: bool = False

    def table(self) -> str:
        """As Markdown."""
        lines = [f"whole model: {self.whole:.2f}", "", "| module or operator | only it | all but it | gain |", "|---|--:|--:|--:|"]
        lines += [f"| {r.label} | {r.only:.2f} | {r.all_but:.2f} | {r.gain:+.2f} |" for r in self.rows]
        return "\n".join([*lines, *(["", _INTERRUPTED] if self.interrupted else [])])

    __str__ = table

    def rich(self) -> RenderableType:
        """A table of Rich."""
        from rich.console import Group

        table = tables.table()
        table.add_column("module or operator")
        for name in ("only it, dB", "all but it, dB", "gain, dB"):
            table.add_column(name, justify="right")
        for row in self.rows:
            table.add_row(row.label, f"{row.only:.2f}", f"{row.all_but:.2f}", f"{row.gain:+.2f}")
        first = f"The whole model quantized: {self.whole:.2f} dB. Gain: what leaving the module in float brings."
        return Group(first, "", table, *(["", _INTERRUPTED] if self.interrupted else []))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def plot(self, path: str | Path) -> None:
        """Bars of the gain per module, worst first, as an image file (needs matplotlib).

        Args:
            path: its ending says the format, e.g. ``.png`` or ``.svg``.
        """
        from matplotlib.figure import Figure

        rows = self.rows[:40][::-1]
        figure = Figure(figsize=(8, 1 + 0.25 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        axes.barh([r.label for r in rows], [r.gain for r in rows])
        axes.set_xlabel(f"gained if it alone is not quantized (whole model: {self.whole:.1f})")
        figure.savefig(path)


@exclusive()
def sensitivity(
    model: nn.Module,
    spec: ArmCompileSpec | TOSAQuantizer,
    samples: Sequence[Inputs],
    metric: Metric | None = None,
    *,
    config: QuantizationConfig | None = None,
    modules: Sequence[str] | None = None,
    judge: str = FAKE,
    progress: Callable[[int, int, str], None] | None = None,
) -> Sensitivity:
    """Measure how much accuracy the quantization of each module, and of each operator outside modules, costs.

    The model is calibrated once; then the quantization of each is switched on alone and off alone. Ctrl-C between stops that and
    gives the rows so far.

    Args:
        model: in eval mode, or a graph module from torch.export.
        spec: what is compiled for; or a quantizer, whose settings then say what is quantized.
        samples: input tuples; ranges come from them and the metric is measured on them.
        metric: (float outputs, quantized outputs), one entry per sample -> a number, larger is better; ``ethorch.sqnr_db`` by
            default.
        config: scheme of the whole model where ``spec`` is no quantizer; int8, weights per channel, by default.
        modules: names of modules, or of FX nodes, to try; by default the innermost modules in which something is quantized, and
            the operators outside them, such as a ``torch.log`` in ``forward``.
        judge: whose outputs the metric gets: ``"quantized"``, the fake-quantized model's; or ``"npu"``, those of the simulated NPU,
            for which each of the two models of a module is compiled. What is in float then runs on the CPU.
        progress: called as ``progress(done, total, module)``.

    Raises:
        QuantizationError: there are no samples, a named module or node has nothing quantized in it, ``judge`` is something else, or
            ``"npu"`` without an ``EthosUCompileSpec``.
    """
    check_judge(judge)
    quantizer = spec if isinstance(spec, TOSAQuantizer) else TOSAQuantizer(spec)
    if quantizer is not spec:
        quantizer.set_global(config or get_symmetric_quantization_config())
    metric = metric or sqnr_db
    switched = Switched(model, quantizer, samples)
    names = list(modules) if modules is not None else switched.parts
    inside = {name for path in switched.owners.values() for name in path}
    unknown = [name for name in names if name not in inside]
    if unknown:
        raise QuantizationError(
            "sensitivity.module", f"nothing is quantized in {', '.join(unknown)}; quantized modules: {', '.join(switched.parts)}"
        )
    switched.switch(lambda path: False)
    reference = switched.run(samples)
    target = quantizer.compile_spec
    if judge == NPU and not isinstance(target, EthosUCompileSpec):
        raise QuantizationError("accuracy.judge", f"judge={NPU!r} needs an EthosUCompileSpec; {type(target).__name__} names no NPU")

    def judged() -> float:
        """The metric with the switches as they are."""
        if judge == NPU:
            assert isinstance(target, EthosUCompileSpec)
            return metric(reference, switched.run_on_npu(samples, target))
        return metric(reference, switched.run(samples))

    switched.switch(lambda path: True)
    whole = judged()
    rows: list[ModuleSensitivity] = []
    with suppress(KeyboardInterrupt):
        for number, name in enumerate(names):
            if progress:
                progress(number, len(names), name)
            figures = []
            for only in (True, False):
                switched.switch(lambda path, name=name, only=only: (name in path) == only)  # type: ignore[misc]
                figures.append(judged())
            rows.append(ModuleSensitivity(name, figures[0], figures[1], figures[1] - whole, switched.operators.get(name, "")))
    if progress and len(rows) == len(names):
        progress(len(names), len(names), "")
    return Sensitivity(whole, tuple(sorted(rows, key=lambda row: -row.gain)), interrupted=len(rows) < len(names))

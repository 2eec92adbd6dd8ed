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
from ethorch.support.metrics import Metric, lowest_sqnr_db
from ethorch.support.text_files import finite
from ethorch.targets.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.tuning.sample_runs import FAKE, NPU, Inputs, check_judge
from ethorch.tuning.switched_graph import Switched

if TYPE_CHECKING:
    from rich.console import RenderableType


_INTERRUPTED = "Interrupted. The table contains only the finished modules."


@dataclass(frozen=True)
class ModuleSensitivity:
    """The sensitivity of a leaf module, or of an operator outside leaf modules.

    Attributes:
        module: Name of the module, e.g. ``features.3.conv``, or of the operator's FX node, e.g. ``log``.
        only: Metric if only this module is quantized.
        all_but: Metric if everything except this module is quantized.
        gain: ``all_but`` minus the metric of the fully quantized model, i.e. the benefit of leaving only this module in float.
        operator: ATen name and source line, e.g. ``aten.log.default, net.py:41``, or "" for a module.
    """

    module: str
    only: float
    all_but: float
    gain: float
    operator: str = ""

    @property
    def label(self) -> str:
        """The module's name, or the operator's node name, ATen name and source line."""
        return f"{self.module} ({self.operator})" if self.operator else self.module


@dataclass(frozen=True)
class Sensitivity:
    """The result of ``ethorch.tuning.sensitivity``, sorted by gain.

    Attributes:
        whole: Metric with everything quantized.
        rows: One entry for each leaf module, and for each operator outside of leaf modules.
        interrupted: Whether ``rows`` is incomplete because the measurement was interrupted.
    """

    whole: float
    rows: tuple[ModuleSensitivity, ...]
    interrupted: bool = False

    def table(self) -> str:
        """Return the rows as Markdown."""
        lines = [
            f"fully quantized: {self.whole:.2f}",
            "",
            "| module or operator | quantized alone | left in float | gain |",
            "|---|--:|--:|--:|",
        ]
        lines += [f"| {r.label} | {r.only:.2f} | {r.all_but:.2f} | {r.gain:+.2f} |" for r in self.rows]
        return "\n".join([*lines, *(["", _INTERRUPTED] if self.interrupted else [])])

    __str__ = table

    def rich(self) -> RenderableType:
        """Return the rows as a Rich table."""
        from rich.console import Group

        table = tables.table()
        table.add_column("module or operator")
        for name in ("quantized alone", "left in float", "gain"):
            table.add_column(name, justify="right")
        for row in self.rows:
            table.add_row(row.label, f"{row.only:.2f}", f"{row.all_but:.2f}", f"{row.gain:+.2f}")
        first = f"Fully quantized model: {self.whole:.2f} (default: dB). Gain: improvement if only this module is left in float."
        return Group(first, "", table, *(["", _INTERRUPTED] if self.interrupted else []))

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        data: dict[str, Any] = finite(asdict(self))
        return data

    def plot(self, path: str | Path) -> None:
        """Save a bar chart of the 40 largest gains. Requires matplotlib."""
        from matplotlib.figure import Figure

        rows = self.rows[:40][::-1]
        figure = Figure(figsize=(8, 1 + 0.25 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        axes.barh([r.label for r in rows], [r.gain for r in rows])
        axes.set_xlabel(f"gain if only this module is left in float (fully quantized model: {self.whole:.1f})")
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
    """Measure the accuracy lost by quantizing each module, and each operator outside modules.

    The model is calibrated once. For each module, one run quantizes only the module, and another quantizes everything else.
    Ctrl-C stops the measurement and returns the results so far.

    Args:
        model: Module in evaluation mode, or a graph module from torch.export.
        spec: Compile spec, or a configured quantizer.
        samples: Input tuples for calibration and measurement.
        metric: Function of (float outputs, quantized outputs), two lists with one entry per sample. It returns a number; larger
            is better. Default: the lowest SQNR among the outputs, in dB.
        config: Quantization config if ``spec`` is not a quantizer. Default: int8 with per-channel weights.
        modules: Names of modules or FX nodes. Default: the innermost quantized modules and the operators outside them.
        judge: ``"quantized"`` runs the fake-quantized model; ``"npu"`` simulates the NPU and runs float operators on the CPU.
        progress: Function called as ``progress(finished, total, module)``.

    Raises:
        QuantizationError: ``samples`` is empty, a named module is not quantized, ``judge`` is unknown, or ``judge`` is ``"npu"``
            without an ``EthosUCompileSpec``.
    """
    check_judge(judge)
    quantizer = spec if isinstance(spec, TOSAQuantizer) else TOSAQuantizer(spec)
    if quantizer is not spec:
        quantizer.set_global(config or get_symmetric_quantization_config())
    metric = metric or lowest_sqnr_db
    switched = Switched(model, quantizer, samples)
    names = list(modules) if modules is not None else switched.parts
    inside = {name for path in switched.owners.values() for name in path}
    unknown = [name for name in names if name not in inside]
    if unknown:
        raise QuantizationError(
            "sensitivity.module", f"expected quantized modules, got {', '.join(unknown)}. Use one of {', '.join(switched.parts)}"
        )
    switched.switch(lambda path: False)
    reference = switched.run(samples)
    target = quantizer.compile_spec
    if judge == NPU and not isinstance(target, EthosUCompileSpec):
        raise QuantizationError("accuracy.judge", f"expected an EthosUCompileSpec for judge={NPU!r}, got {type(target).__name__}")

    def compute_metric() -> float:
        if judge == NPU:
            assert isinstance(target, EthosUCompileSpec)
            return metric(reference, switched.run_on_npu(samples, target))
        return metric(reference, switched.run(samples))

    switched.switch(lambda path: True)
    baseline = compute_metric()
    rows: list[ModuleSensitivity] = []
    with suppress(KeyboardInterrupt):
        for number, name in enumerate(names):
            if progress:
                progress(number, len(names), name)
            figures = []
            for only in (True, False):
                switched.switch(lambda path, name=name, only=only: (name in path) == only)  # type: ignore[misc]
                figures.append(compute_metric())
            rows.append(ModuleSensitivity(name, figures[0], figures[1], figures[1] - baseline, switched.operators.get(name, "")))
    if progress and len(rows) == len(names):
        progress(len(names), len(names), "")
    return Sensitivity(baseline, tuple(sorted(rows, key=lambda row: -row.gain)), interrupted=len(rows) < len(names))

"""Comparison of float model, quantized model and NPU as plain data, tables and text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, cast

LEGEND = (
    "Columns: fake is the fake-quantized model against float, NPU the program against float, own the operator alone with equal "
    "inputs, NPU/fake the program against the fake-quantized model."
)


@dataclass(frozen=True)
class LayerComparison:
    """An operator, with those that share its quantize node, in float, fake-quantized and on the NPU.

    Signal-to-noise ratios in dB cover all samples: inf for equal values, None without float values.

    Attributes:
        node: FX name of the operator whose result is quantized, in the converted graph.
        operator: ATen name; ``input`` for an input of the program, ``requantize`` for a change of scale.
        fused: ATen names of the earlier operators that are computed with it, in order.
        module, source: Path of the user's module; file and line of the user's code.
        on_npu: Whether the NPU computes it.
        dtype: Integer type.
        scale: Quantization step; None for integers and booleans, whose step is 1.
        elements: Number of elements per sample.
        float_fake_db: Fake-quantized result against float: all noise of quantization so far.
        fake_npu_db: NPU result against fake-quantized.
        float_npu_db: NPU result against float.
        own_db: The same as ``float_fake_db`` with operands of the float model: the noise that this operator adds. Operators that
            only move data add none.
        steps: Largest difference between NPU and fake-quantized result in steps, including earlier operators.
        own_steps: The same with equal operands: the difference that this operator adds.
        allowed_steps: Difference that its rounding permits (see ``ethorch.lower.ops.spec``); 0 on the CPU.
        saturated: Share of clipped elements, 0..1; None for integers.
        range_used: Share of the integer range between the least and the largest value, 0..1; None for integers.
    """

    node: str
    operator: str
    fused: tuple[str, ...]
    module: str
    source: str
    on_npu: bool
    dtype: str
    scale: float | None
    elements: int
    float_fake_db: float | None
    fake_npu_db: float
    float_npu_db: float | None
    own_db: float | None
    steps: float
    own_steps: float
    allowed_steps: int
    saturated: float | None
    range_used: float | None

    @property
    def diverges(self) -> bool:
        """Return True if NPU and PyTorch differ by more than the operator's rounding allows."""
        return self.own_steps > self.allowed_steps

    def __str__(self) -> str:
        names = "+".join(short_name(name) for name in (*self.fused, self.operator))
        place = f" at {self.module}" if self.module else ""
        return f"{names}{place}" + (f" ({self.source})" if self.source else "")


@dataclass(frozen=True)
class OutputComparison:
    """One output of the program. Figures of the quantized model are nan if it is unknown.

    Attributes:
        quantized_db: SQNR of the quantized model against float.
        npu_db: SQNR of the program against float.
        agreement_db, largest_difference: SQNR and largest difference of the program against the quantized model.
    """

    shape: tuple[int, ...]
    quantized_db: float
    npu_db: float
    agreement_db: float
    largest_difference: float


@dataclass(frozen=True)
class DelegateComparison:
    """Number of output elements of a delegate that differ between simulator and TOSA reference model, and of all elements."""

    elements: int
    different: int
    first_difference: str


@dataclass(frozen=True)
class Ladder:
    """Comparison for one input."""

    outputs: tuple[OutputComparison, ...]
    delegates: tuple[DelegateComparison, ...]

    @property
    def bit_exact(self) -> bool:
        """Return True if the simulator computes the same bits as the TOSA reference model."""
        return all(delegate.different == 0 for delegate in self.delegates)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bit_exact": self.bit_exact}

    def to_text(self) -> str:
        lines = []
        for number, x in enumerate(self.outputs):
            if math.isnan(x.largest_difference):
                lines.append(f"output {number} {list(x.shape)}: NPU vs float {x.npu_db:.1f} dB")
                continue
            lines.append(
                f"output {number} {list(x.shape)}: quantized vs float {x.quantized_db:.1f} dB, NPU vs float "
                f"{x.npu_db:.1f} dB, NPU vs quantized {x.agreement_db:.1f} dB, largest difference {x.largest_difference:.4g}"
            )
        for number, d in enumerate(self.delegates):
            same = "all equal" if not d.different else f"{d.different} DIFFER, first {d.first_difference}"
            lines.append(f"delegate {number}: simulator vs TOSA reference model, {d.elements} elements: {same}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Comparison(Ladder):
    """The comparison over all samples, with the figures of each operator.

    Attributes:
        layers: Operators in execution order.
        samples: Number of samples.
        missing: Omitted figures with the reason; empty if complete.
    """

    layers: tuple[LayerComparison, ...] = ()
    samples: int = 1
    missing: str = ""

    @property
    def first_divergence(self) -> LayerComparison | None:
        """First operator whose NPU result differs from PyTorch by more than its rounding permits; None without one."""
        return next((layer for layer in self.layers if layer.diverges), None)

    @property
    def largest_loss(self) -> LayerComparison | None:
        """Operator that adds the most noise relative to its signal; None without float figures."""
        layers = [layer for layer in self.layers if layer.own_db is not None and not math.isnan(layer.own_db)]
        least = min(layers, key=lambda layer: layer.own_db or 0.0, default=None)
        return None if least is None or least.own_db == math.inf else least

    def to_json(self) -> dict[str, Any]:
        """Return plain data. Infinite figures, such as the dB of equal values, become None."""
        first, loss = self.first_divergence, self.largest_loss
        outputs = {
            **asdict(self),
            "bit_exact": self.bit_exact,
            "first_divergence": None if first is None else first.node,
            "largest_loss": None if loss is None else loss.node,
        }
        return cast(dict[str, Any], _finite(outputs))

    def to_text(self) -> str:
        """Return the outputs, the table of operators, and the operators to inspect."""
        first, loss = self.first_divergence, self.largest_loss
        lines = [super().to_text()]
        if self.layers:
            lines += ["", self.table(), "", LEGEND]
            if loss is not None:
                lines.append(f"most noise is added by {loss}: {loss.own_db:.1f} dB on its own")
            apart = "NPU and PyTorch differ by no more than rounding permits"
            if first is not None:
                apart = f"NPU and PyTorch first differ at {first}: {first.own_steps:g} steps, permitted {first.allowed_steps}"
            lines.append(apart)
        if self.missing:
            lines.append(self.missing)
        return "\n".join(lines)

    __str__ = to_text

    def table(self) -> str:
        """Return a line per operator; ``!`` marks those where NPU and PyTorch differ too much."""
        heads = ("", "", "", "", "fake", "NPU", "own", "NPU", "NPU/fake", "own", "clipped", "range")
        rows: list[tuple[str, ...]] = [
            heads,
            ("operator", "source", "on", "codes", "dB", "dB", "dB", "/fake dB", "steps", "steps", "%", "%"),
        ]
        for x in self.layers:
            rows.append(
                (
                    "+".join(short_name(name) for name in (*x.fused, x.operator)) + (f" {x.module}" if x.module else ""),
                    x.source,
                    "NPU" if x.on_npu else "CPU",
                    x.dtype,
                    *(_number(db) for db in (x.float_fake_db, x.float_npu_db, x.own_db, x.fake_npu_db)),
                    f"{x.steps:g}",
                    f"{x.own_steps:g}" + ("!" if x.diverges else ""),
                    *("-" if share is None else f"{100 * share:.1f}" for share in (x.saturated, x.range_used)),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if k < 4 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


def _number(db: float | None) -> str:
    return "-" if db is None else "same" if db == math.inf else f"{db:.1f}"


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def short_name(name: str) -> str:
    """Return ``conv2d`` for ``aten.conv2d.default``."""
    return name.removeprefix("aten.").partition(".")[0]

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ethorch.support.text_files import finite

LEGEND = (
    "Columns: fake compares the fake-quantized model with the float model. NPU compares the program with the float model. own "
    "compares the operator alone, with equal inputs. NPU/fake compares the program with the fake-quantized model."
)


@dataclass(frozen=True)
class LayerComparison:
    """A comparison of one operator's results in the float model, in the fake-quantized model and on the NPU.

    Operators that share a quantize node are compared as one. SQNR in dB covers all samples. It is inf for equal values and None
    if the operator has no float values.

    Attributes:
        node: FX name, in the converted graph, of the operator whose result is quantized.
        operator: ATen name, ``input`` for a program input, or ``requantize`` for a change of scale.
        fused: ATen names of the preceding operators that share the quantize node, in order.
        module, source: Module path and ``file.py:line`` in the user's code.
        scale: Quantization step, or None for integers and booleans, whose step is 1.
        elements: Number of elements per sample.
        float_fake_db, fake_npu_db, float_npu_db: SQNR of the second model in the attribute name relative to the first. ``fake``
            is the fake-quantized model.
        own_db: SQNR of the fake-quantized operator, computed from the float model's operands to exclude noise of earlier operators.
            Operators that only move data add no noise.
        steps: Largest difference between the NPU result and the fake-quantized result, in steps.
        own_steps: Largest difference in steps between the NPU's and PyTorch's results for the same operands.
        allowed_steps: Difference in steps that rounding permits (see ``ethorch.lower.ops.spec``), or 0 on the CPU.
        saturated: Share of clipped elements, from 0 to 1, or None for integers.
        range_used: Share of the integer range that the result covers, from 0 to 1, or None for integers.
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
        """True if the results of the NPU and PyTorch differ by more than the operator's rounding permits."""
        return self.own_steps > self.allowed_steps

    def __str__(self) -> str:
        names = "+".join(short_name(name) for name in (*self.fused, self.operator))
        place = f" at {self.module}" if self.module else ""
        return f"{names}{place}" + (f" ({self.source})" if self.source else "")


@dataclass(frozen=True)
class OutputComparison:
    """The comparison of one program output. Figures for the quantized model are nan if that model is unknown.

    Attributes:
        quantized_db: SQNR of the quantized model relative to the float model.
        npu_db: SQNR of the program relative to the float model.
        agreement_db: SQNR of the program relative to the quantized model.
        largest_difference: Largest difference between the program and the quantized model.
    """

    shape: tuple[int, ...]
    quantized_db: float
    npu_db: float
    agreement_db: float
    largest_difference: float


@dataclass(frozen=True)
class DelegateComparison:
    """The comparison of a delegate with the TOSA reference model.

    Attributes:
        elements, different: Number of output elements, and number of elements that differ.
        first_difference: Position and values of the first difference, or "".
    """

    elements: int
    different: int
    first_difference: str


@dataclass(frozen=True)
class Ladder:
    """The comparison of a program's outputs with those of its models, and of its delegates with the TOSA reference model."""

    outputs: tuple[OutputComparison, ...]
    delegates: tuple[DelegateComparison, ...]

    @property
    def bit_exact(self) -> bool:
        """True if the simulator is bit-exact with the TOSA reference model."""
        return all(delegate.different == 0 for delegate in self.delegates)

    def to_json(self) -> dict[str, Any]:
        return {**finite(asdict(self)), "bit_exact": self.bit_exact}

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
    """The comparison of a program with its models over all samples, with figures for each operator.

    Attributes:
        layers: Operators in execution order.
        missing: The omitted figures and the reason, or "" if the comparison is complete.
    """

    layers: tuple[LayerComparison, ...] = ()
    samples: int = 1
    missing: str = ""

    @property
    def first_divergence(self) -> LayerComparison | None:
        """The first operator whose NPU result differs from PyTorch's by more than rounding permits, or None."""
        return next((layer for layer in self.layers if layer.diverges), None)

    @property
    def largest_loss(self) -> LayerComparison | None:
        """The operator that adds the most noise (lowest ``own_db``), or None if no noise is known."""
        layers = [layer for layer in self.layers if layer.own_db is not None and not math.isnan(layer.own_db)]
        least = min(layers, key=lambda layer: layer.own_db or 0.0, default=None)
        return None if least is None or least.own_db == math.inf else least

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data. Infinite figures become None."""
        first, loss = self.first_divergence, self.largest_loss
        return {
            **super().to_json(),
            "first_divergence": None if first is None else first.node,
            "largest_loss": None if loss is None else loss.node,
        }

    def to_text(self) -> str:
        """Return the figures of each output, the table of operators, and the names of operators to inspect."""
        first, loss = self.first_divergence, self.largest_loss
        lines = [super().to_text()]
        if self.layers:
            lines += ["", self.table(), "", LEGEND]
            if loss is not None:
                lines.append(f"{loss} adds the most noise: {loss.own_db:.1f} dB (column own)")
            apart = "the NPU and PyTorch differ only by rounding"
            if first is not None:
                apart = f"the NPU and PyTorch first differ at {first}: {first.own_steps:g} steps (allowed: {first.allowed_steps})"
            lines.append(apart)
        if self.missing:
            lines.append(self.missing)
        return "\n".join(lines)

    __str__ = to_text

    def table(self) -> str:
        """Return a table with a line for each operator. ``!`` marks operators whose NPU results differ too much from PyTorch's."""
        heads = ("", "", "", "", "fake", "NPU", "own", "NPU", "NPU/fake", "own", "clipped", "range")
        rows: list[tuple[str, ...]] = [
            heads,
            ("operator", "source", "on", "type", "dB", "dB", "dB", "/fake dB", "steps", "steps", "%", "%"),
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


def short_name(name: str) -> str:
    """Return the base name of an operator, e.g. ``conv2d`` for ``aten.conv2d.default``."""
    return name.removeprefix("aten.").partition(".")[0]

"""Quantization rules as values: what the quantizer does with an operator's inputs and output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QuantRule:
    """How an operator is quantized.

    Attributes:
        inputs: quantize the float tensor inputs (each with its own qparams).
        only_first: of the tensor arguments only the first is an activation; the rest are folded constants.
        output: ``own`` (observed), ``same`` (shares the first input's), ``fixed`` (``fixed_range``), ``none``.
        weight: index of the weight argument, quantized by the weight scheme; -1 for none.
        bias: index of the bias argument, left in float: the lowering quantizes it with scale input x weight.
        joins: the output is the inputs side by side: one that nobody else reads gets the output's qparams, and no RESCALE.
        fixed_range: (real minimum, real maximum) of a ``fixed`` output, known from mathematics.
    """

    inputs: bool = True
    only_first: bool = False
    output: str = "own"
    weight: int = -1
    bias: int = -1
    joins: bool = False
    fixed_range: tuple[float, float] | None = None

    @property
    def fusable(self) -> bool:
        """Does the operator requantize its result anyway, so that a clamp behind it costs nothing?"""
        return self.inputs and self.output == "own"


EACH_INPUT = QuantRule()
JOINED = QuantRule(joins=True)
SAME_AS_INPUT = QuantRule(output="same")
WEIGHTED = QuantRule(weight=1, bias=2)
FIRST_INPUT = QuantRule(only_first=True)
NOT_QUANTIZED = QuantRule(inputs=False, output="none")


def fixed_output(low: float, high: float) -> QuantRule:
    """The output's real range is known: its scale is (high - low) / 256, no observer needed."""
    return QuantRule(output="fixed", fixed_range=(low, high))

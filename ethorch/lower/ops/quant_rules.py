"""Quantization rules as values: what the quantizer does with an operator's inputs and output."""

from __future__ import annotations

from dataclasses import dataclass

from ethorch.lower.builder.window import Window


@dataclass(frozen=True)
class Layer:
    """out = bias + weight * input, a convolution or a linear layer: where it has its parameters and its channels.

    Attributes:
        weight: index of the weight argument, quantized by the weight scheme.
        bias: index of the bias argument, left in float: the lowering quantizes it with scale input x weight.
        weight_axis: axis of the weight that holds the output channels; None where two axes hold them.
        output_axis: axis of the result that holds them, counted from the last one, which is -1.
        groups: each output channel reads one of so many equal parts of the input channels.
        window: what one result reads of the input. None for a linear layer, which reads the last axis. A transposed
            convolution has none either.
    """

    weight: int = 1
    bias: int = 2
    weight_axis: int | None = 0
    output_axis: int = -1
    groups: int = 1
    window: Window | None = None


@dataclass(frozen=True)
class QuantRule:
    """How an operator is quantized.

    Attributes:
        inputs: quantize the float tensor inputs (each with its own qparams).
        only_first: of the tensor arguments only the first is an activation; the rest are folded constants.
        output: ``own`` (observed), ``same`` (shares the first input's), ``fixed`` (``fixed_range``), ``none``.
        keeps_codes: each element of the result is one of the input or zero. An output ``own`` shares the qparams of an input
            that is quantized by itself, since finer steps would round it a second time.
        layer: where the operator has its weight and its channels, if it has a weight.
        joins: the output is the inputs side by side: one that nobody else reads gets the output's qparams, and no RESCALE.
        replaces: the output is the first input with some of its elements replaced by those of others.
        fixed_range: (real minimum, real maximum) of a ``fixed`` output, known from mathematics.
        is_threshold: the result depends only on which side of the second input the first one is.
        domain: (least, largest) real number that the first input can be; codes for numbers beyond would mean nothing.
    """

    inputs: bool = True
    only_first: bool = False
    output: str = "own"
    keeps_codes: bool = False
    layer: Layer | None = None
    joins: bool = False
    replaces: bool = False
    fixed_range: tuple[float, float] | None = None
    is_threshold: bool = False
    domain: tuple[float, float] | None = None

    @property
    def fusable(self) -> bool:
        """Does the operator requantize its result anyway, so that a clamp behind it costs nothing?"""
        return self.inputs and self.output == "own"


EACH_INPUT = QuantRule()
RECTIFIED = QuantRule(keeps_codes=True)
JOINED = QuantRule(joins=True)
OVERWRITTEN = QuantRule(joins=True, replaces=True)
SAME_AS_INPUT = QuantRule(output="same")
FIRST_INPUT = QuantRule(only_first=True)
NOT_QUANTIZED = QuantRule(inputs=False, output="none")
#: Of functions that are defined on -1..1 alone.
UNIT_DOMAIN = QuantRule(domain=(-1.0, 1.0))


def fixed_output(low: float, high: float) -> QuantRule:
    """An output whose real range is known: its scale is (high - low) / 256, and nothing observes it."""
    return QuantRule(output="fixed", fixed_range=(low, high))

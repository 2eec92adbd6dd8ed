from __future__ import annotations

from dataclasses import dataclass

from ethorch.lower.builder.window import Window


@dataclass(frozen=True)
class Layer:
    """The arguments and channels of a convolution or linear layer.

    Attributes:
        weight, bias: Argument positions. The lowering quantizes the bias with the product of the input and weight scales.
        weight_axis: Axis of the weight's output channels, or None if two axes contain them.
        output_axis: Negative index of the result's channel axis.
        groups: Number of groups.
        window: Input window of one output element, or None for linear layers and transposed convolutions.
    """

    weight: int = 1
    bias: int = 2
    weight_axis: int | None = 0
    output_axis: int = -1
    groups: int = 1
    window: Window | None = None


@dataclass(frozen=True)
class QuantRule:
    """The quantization rule of an operator.

    Attributes:
        inputs: Whether float tensor inputs are quantized.
        only_first: Whether only the first tensor is quantized. Other tensors are constants or indices.
        output: Source of the output's quantization parameters: ``own`` (observed), ``same`` (first input), ``fixed``
            (``fixed_range``) or ``none``.
        keeps_codes: Whether each result element is zero or equals an input element. If so, the output shares the input's
            parameters, unless QAT is used, the operator is absorbed, or a concatenation reads the output.
        layer: Arguments and channels of a convolution or linear layer, or None.
        joins: Whether the output contains elements of the inputs. If so, an input without other readers gets the output's
            parameters.
        selects: Whether the output of an operator that joins may lack the inputs' extremes.
        replaces: Whether elements of other inputs replace elements of the first input.
        averages: Whether the results are averages of input elements.
        fixed_range: (real minimum, real maximum) of a ``fixed`` output.
        most_int8: Highest value of an 8-bit ``fixed`` output.
        is_threshold: Whether the result depends only on the sign of the inputs' difference.
        domain: Range (minimum, maximum) of the first input on which the operator is defined.
        factors: Positions of the two operands of a matrix product, or None.
    """

    inputs: bool = True
    only_first: bool = False
    output: str = "own"
    keeps_codes: bool = False
    layer: Layer | None = None
    joins: bool = False
    selects: bool = False
    replaces: bool = False
    averages: bool = False
    fixed_range: tuple[float, float] | None = None
    most_int8: float | None = None
    is_threshold: bool = False
    domain: tuple[float, float] | None = None
    factors: tuple[int, int] | None = None

    @property
    def fusable(self) -> bool:
        """True if the operator can absorb a following clamp. Only the clamp's output is then observed."""
        return self.inputs and self.output == "own"


EACH_INPUT = QuantRule()
RECTIFIED = QuantRule(keeps_codes=True)
JOINED = QuantRule(joins=True)
OVERWRITTEN = QuantRule(joins=True, replaces=True)
SELECTED = QuantRule(joins=True, selects=True)
SAME_AS_INPUT = QuantRule(output="same")
AVERAGED = QuantRule(output="same", averages=True)
FIRST_INPUT = QuantRule(only_first=True)
NOT_QUANTIZED = QuantRule(inputs=False, output="none")
#: Functions that are defined only on -1..1.
UNIT_DOMAIN = QuantRule(domain=(-1.0, 1.0))


def fixed_output(low: float, high: float, most_int8: float | None = None) -> QuantRule:
    return QuantRule(output="fixed", fixed_range=(low, high), most_int8=most_int8 or high)

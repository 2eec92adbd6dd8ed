"""Builder: what lowerings are written in.

It is put together of a class per subject, each of which adds words to those below it::

    tosa.emitter     Emitter             emit, const, refuse, name       TOSA operators, checked
    movement         MovementBuilder     nhwc, view, permute, aligned    where elements lie
    scaling          ScalingBuilder      rescale, requantize, cast       what codes mean
    operands         OperandBuilder      requantized, operand, to_int32  what an operator is given
    lookup           LookupBuilder       table, integer_table            functions of codes
    convolution      ConvolutionBuilder  conv2d, depthwise_conv2d        products and sums
"""

from __future__ import annotations

from ethorch.lower.builder.convolution import ConvolutionBuilder


class Builder(ConvolutionBuilder):
    """Emits TOSA for tensors that are quantized, float, or of plain integers."""

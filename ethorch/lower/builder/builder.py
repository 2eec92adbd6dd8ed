"""The Builder that lowerings use.

| Base class         | Methods                      | Subject                      |
| Emitter            | emit, const, refuse, name    | verified TOSA operators      |
| MovementBuilder    | nhwc, view, permute, narrow  | layout and movement          |
| ScalingBuilder     | rescale, requantize, cast    | scales and dtypes            |
| OperandBuilder     | operand, to_int32            | conversion of operands       |
| LookupBuilder      | table, integer_table         | functions of integer values  |
| ConvolutionBuilder | conv2d, depthwise_conv2d     | convolutions                 |
"""

from __future__ import annotations

from ethorch.lower.builder.convolution import ConvolutionBuilder


class Builder(ConvolutionBuilder):
    """A builder of TOSA for quantized, float and integer tensors."""

"""The Builder that lowerings use.

Each base class adds the methods of one subject:

| Class              | Methods                      | Subject                     |
| Emitter            | emit, const, refuse, name    | TOSA operators, checked     |
| MovementBuilder    | nhwc, view, permute, narrow  | order and movement          |
| ScalingBuilder     | rescale, requantize, cast    | scales and dtypes           |
| OperandBuilder     | operand, to_int32            | conversion of operands      |
| LookupBuilder      | table, integer_table         | functions of integer values |
| ConvolutionBuilder | conv2d, depthwise_conv2d     | products and sums           |
"""

from __future__ import annotations

from ethorch.lower.builder.convolution import ConvolutionBuilder


class Builder(ConvolutionBuilder):
    """A builder of TOSA for quantized, float and integer tensors."""

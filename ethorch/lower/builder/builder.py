"""The Builder that lowerings use.

| Base class         | Subject                      |
| Emitter            | verified TOSA operators      |
| MovementBuilder    | layout and movement          |
| ScalingBuilder     | scales and dtypes            |
| OperandBuilder     | conversion of operands       |
| LookupBuilder      | functions of integer values  |
| ConvolutionBuilder | convolutions                 |
"""

from __future__ import annotations

from ethorch.lower.builder.convolution import ConvolutionBuilder


class Builder(ConvolutionBuilder):
    """A builder of TOSA for quantized, float and integer tensors."""

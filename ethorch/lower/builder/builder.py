"""The Builder that lowerings use.

Its base classes each cover one subject: verified operators, layout and movement, scales, operands, tables and convolutions.
"""

from __future__ import annotations

from ethorch.lower.builder.convolution import ConvolutionBuilder


class Builder(ConvolutionBuilder):
    """A builder of TOSA for quantized, float and integer tensors."""

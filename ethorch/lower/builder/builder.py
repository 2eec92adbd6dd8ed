"""The Builder that lowerings use. Each base class covers one subject."""

from __future__ import annotations

from ethorch.lower.builder.convolution import ConvolutionBuilder


class Builder(ConvolutionBuilder):
    """A builder of TOSA graphs with quantized, float and integer tensors."""

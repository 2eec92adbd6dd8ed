"""Supported names of ``executorch.backends.arm.quantizer.quantization_config``."""

from ethorch.quantization.config import QuantizationConfig

TOSAQuantizationConfig = QuantizationConfig

__all__ = ["QuantizationConfig", "TOSAQuantizationConfig"]

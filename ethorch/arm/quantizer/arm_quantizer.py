"""Supported names of ``executorch.backends.arm.quantizer.arm_quantizer``."""

from ethorch.quantization.config import (
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from ethorch.quantization.quantizer import EthosUQuantizer, TOSAQuantizer

__all__ = [
    "EthosUQuantizer",
    "TOSAQuantizer",
    "get_symmetric_a8w4_quantization_config",
    "get_symmetric_a16w8_quantization_config",
    "get_symmetric_quantization_config",
    "get_uint8_io_quantization_config",
]

"""Supported names of ``executorch.backends.arm.quantizer``."""

from ethorch.arm.quantizer.arm_quantizer import (
    EthosUQuantizer,
    TOSAQuantizer,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from ethorch.arm.quantizer.arm_quantizer_utils import is_annotated
from ethorch.arm.quantizer.quantization_config import QuantizationConfig, TOSAQuantizationConfig

__all__ = [
    "EthosUQuantizer",
    "QuantizationConfig",
    "TOSAQuantizationConfig",
    "TOSAQuantizer",
    "get_symmetric_a8w4_quantization_config",
    "get_symmetric_a16w8_quantization_config",
    "get_symmetric_quantization_config",
    "get_uint8_io_quantization_config",
    "is_annotated",
]

"""The names of ``executorch.backends.arm.quantizer``."""

from ethorch.quantization.config import (
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from ethorch.quantization.quantizer import EthosUQuantizer, TOSAQuantizer
from ethorch.quantization.specs import is_annotated

TOSAQuantizationConfig = QuantizationConfig

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

"""ethorch: PyTorch models to Arm Ethos-U NPUs, and their programs run bit for bit on the desk."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ethorch.backend import EthosUBackend, TOSABackend
    from ethorch.compile_spec import ArmCompileSpecBuilder, EthosUCompileSpec
    from ethorch.partitioner import EthosUPartitioner, TOSAPartitioner
    from ethorch.quantization_config import (
        QuantizationConfig,
        get_symmetric_a8w4_quantization_config,
        get_symmetric_a16w8_quantization_config,
        get_symmetric_quantization_config,
        get_uint8_io_quantization_config,
    )
    from ethorch.quantize.equalize import equalize
    from ethorch.quantize.mixed_precision import mixed_precision
    from ethorch.quantize.refine import correct_bias, round_weights
    from ethorch.quantize.sensitivity import sensitivity
    from ethorch.quantizer import EthosUQuantizer, TOSAQuantizer
    from ethorch.tosa_spec import TosaCompileSpec, TosaSpecification

#: Public name -> module. Loaded on first use: ``import ethorch`` takes milliseconds, not torch's and executorch's seconds.
_WHERE = {
    "ArmCompileSpecBuilder": "compile_spec",
    "EthosUBackend": "backend",
    "EthosUCompileSpec": "compile_spec",
    "EthosUPartitioner": "partitioner",
    "EthosUQuantizer": "quantizer",
    "QuantizationConfig": "quantization_config",
    "TOSABackend": "backend",
    "TOSAPartitioner": "partitioner",
    "TOSAQuantizer": "quantizer",
    "TosaCompileSpec": "tosa_spec",
    "TosaSpecification": "tosa_spec",
    "correct_bias": "quantize.refine",
    "equalize": "quantize.equalize",
    "get_symmetric_a16w8_quantization_config": "quantization_config",
    "get_symmetric_a8w4_quantization_config": "quantization_config",
    "get_symmetric_quantization_config": "quantization_config",
    "get_uint8_io_quantization_config": "quantization_config",
    "mixed_precision": "quantize.mixed_precision",
    "round_weights": "quantize.refine",
    "sensitivity": "quantize.sensitivity",
}

__all__ = [
    "ArmCompileSpecBuilder",
    "EthosUBackend",
    "EthosUCompileSpec",
    "EthosUPartitioner",
    "EthosUQuantizer",
    "QuantizationConfig",
    "TOSABackend",
    "TOSAPartitioner",
    "TOSAQuantizer",
    "TosaCompileSpec",
    "TosaSpecification",
    "correct_bias",
    "equalize",
    "get_symmetric_a8w4_quantization_config",
    "get_symmetric_a16w8_quantization_config",
    "get_symmetric_quantization_config",
    "get_uint8_io_quantization_config",
    "mixed_precision",
    "round_weights",
    "sensitivity",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ethorch' has no attribute {name!r}")
    return getattr(import_module(f"ethorch.{_WHERE[name]}"), name)

"""The public names of ExecuTorch's Arm backend, from all of its modules: in a script, only the imports change."""

from ethorch.backend.partitioner import EthosUPartitioner, TOSAPartitioner
from ethorch.backend.preprocess import EthosUBackend, TOSABackend
from ethorch.quantization.config import (
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from ethorch.quantization.quantizer import EthosUQuantizer, TOSAQuantizer
from ethorch.quantization.specs import is_annotated
from ethorch.targets.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.targets.compile_spec_builder import ArmCompileSpecBuilder
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.targets.tosa_specification import TosaSpecification

TOSAQuantizationConfig = QuantizationConfig

__all__ = [
    "ArmCompileSpec",
    "ArmCompileSpecBuilder",
    "EthosUBackend",
    "EthosUCompileSpec",
    "EthosUPartitioner",
    "EthosUQuantizer",
    "QuantizationConfig",
    "TOSABackend",
    "TOSAPartitioner",
    "TOSAQuantizationConfig",
    "TOSAQuantizer",
    "TosaCompileSpec",
    "TosaSpecification",
    "get_symmetric_a8w4_quantization_config",
    "get_symmetric_a16w8_quantization_config",
    "get_symmetric_quantization_config",
    "get_uint8_io_quantization_config",
    "is_annotated",
]

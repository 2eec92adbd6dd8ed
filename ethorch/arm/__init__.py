"""The public names of ExecuTorch's Arm backend, here and under the paths of its modules: a script changes one prefix."""

from ethorch.arm.arm_backend import ArmCompileSpecBuilder
from ethorch.arm.common.arm_compile_spec import ArmCompileSpec
from ethorch.arm.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner
from ethorch.arm.quantizer import (
    EthosUQuantizer,
    QuantizationConfig,
    TOSAQuantizationConfig,
    TOSAQuantizer,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
    is_annotated,
)
from ethorch.arm.tosa.backend import TOSABackend
from ethorch.arm.tosa.compile_spec import TosaCompileSpec
from ethorch.arm.tosa.partitioner import TOSAPartitioner
from ethorch.arm.tosa.specification import TosaSpecification

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

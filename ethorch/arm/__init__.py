"""Entry points of ``executorch.backends.arm``. To port a script, replace this prefix in imports with ``ethorch.arm``."""

from ethorch.arm.arm_backend import ArmCompileSpecBuilder
from ethorch.arm.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner
from ethorch.arm.quantizer import (
    EthosUQuantizer,
    QuantizationConfig,
    TOSAQuantizer,
    get_symmetric_quantization_config,
)
from ethorch.arm.tosa.backend import TOSABackend
from ethorch.arm.tosa.compile_spec import TosaCompileSpec
from ethorch.arm.tosa.partitioner import TOSAPartitioner
from ethorch.arm.tosa.specification import TosaSpecification

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
    "get_symmetric_quantization_config",
]

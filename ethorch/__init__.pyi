from . import arm, backend, language, npu, runtime, targets, tosa, tuning, vela
from .backend.partitioner import EthosUPartitioner, TOSAPartitioner
from .backend.preprocess import EthosUBackend, TOSABackend
from .deploy.firmware.firmware import firmware
from .models.samples import samples
from .program.compile import compile, quantize
from .program.evaluate import Evaluation, evaluate
from .program.explore import Exploration, explore
from .program.program import Program, load
from .program.tune import tune
from .quantization.config import (
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from .quantization.quantizer import EthosUQuantizer, TOSAQuantizer
from .support.errors import EthorchError
from .support.metrics import sqnr_db
from .targets import boards
from .targets.compile_spec import EthosUCompileSpec
from .targets.compile_spec_builder import ArmCompileSpecBuilder
from .targets.settings import Settings
from .targets.tosa_spec import TosaCompileSpec
from .targets.tosa_specification import TosaSpecification
from .tuning.bias_and_rounding import correct_bias, round_weights
from .tuning.equalize import equalize
from .tuning.mixed_precision import mixed_precision
from .tuning.qat import convert, freeze, prepare
from .tuning.rotate import rotate
from .tuning.sensitivity import sensitivity
from .tuning.smooth import smooth

__version__: str

__all__ = [
    "ArmCompileSpecBuilder",
    "EthorchError",
    "EthosUBackend",
    "EthosUCompileSpec",
    "EthosUPartitioner",
    "EthosUQuantizer",
    "Evaluation",
    "Exploration",
    "Program",
    "QuantizationConfig",
    "Settings",
    "TOSABackend",
    "TOSAPartitioner",
    "TOSAQuantizer",
    "TosaCompileSpec",
    "TosaSpecification",
    "arm",
    "backend",
    "boards",
    "compile",
    "convert",
    "correct_bias",
    "equalize",
    "evaluate",
    "explore",
    "firmware",
    "freeze",
    "get_symmetric_a8w4_quantization_config",
    "get_symmetric_a16w8_quantization_config",
    "get_symmetric_quantization_config",
    "get_uint8_io_quantization_config",
    "language",
    "load",
    "mixed_precision",
    "npu",
    "prepare",
    "quantize",
    "rotate",
    "round_weights",
    "runtime",
    "samples",
    "sensitivity",
    "smooth",
    "sqnr_db",
    "targets",
    "tosa",
    "tune",
    "tuning",
    "vela",
]

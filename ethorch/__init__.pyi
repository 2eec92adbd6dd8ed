from . import arm, backend, board, compress, host, language, nhwc, npu, target, tosa, vela
from .accuracy.bias_and_rounding import correct_bias, round_weights
from .accuracy.equalize import equalize
from .accuracy.mixed_precision import mixed_precision
from .accuracy.rotate import rotate
from .accuracy.sensitivity import sensitivity
from .accuracy.smooth import smooth
from .backend.partitioner import EthosUPartitioner, TOSAPartitioner
from .backend.preprocess import EthosUBackend, TOSABackend
from .embedded.firmware import firmware
from .errors import EthorchError
from .metrics import sqnr_db
from .program.compile import compile, quantize
from .program.evaluate import Evaluation, evaluate
from .program.explore import Exploration, explore
from .program.program import Program, load
from .program.settings import Settings
from .program.training import convert, freeze, prepare
from .quantizer.config import (
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from .quantizer.quantizer import EthosUQuantizer, TOSAQuantizer
from .target.compile_spec import EthosUCompileSpec
from .target.compile_spec_builder import ArmCompileSpecBuilder
from .target.tosa_spec import TosaCompileSpec
from .target.tosa_specification import TosaSpecification

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
    "board",
    "compile",
    "compress",
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
    "host",
    "language",
    "load",
    "mixed_precision",
    "nhwc",
    "npu",
    "prepare",
    "quantize",
    "rotate",
    "round_weights",
    "sensitivity",
    "smooth",
    "sqnr_db",
    "target",
    "tosa",
    "vela",
]

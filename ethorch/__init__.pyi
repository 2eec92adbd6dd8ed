from . import arm, language, targets, testing, tosa, tuning
from .backend.partitioner import EthosUPartitioner
from .deploy.firmware.firmware import firmware
from .models.samples import samples
from .program.compile import compile, quantize
from .program.evaluate import Evaluation, evaluate
from .program.explore import Exploration, explore
from .program.program import Program, load
from .program.tune import tune
from .quantization.config import QuantizationConfig
from .quantization.quantizer import EthosUQuantizer
from .support.errors import EthorchError
from .support.metrics import sqnr_db
from .targets import boards
from .targets.compile_spec import EthosUCompileSpec
from .targets.settings import Settings

__version__: str

__all__ = [
    "EthorchError",
    "EthosUCompileSpec",
    "EthosUPartitioner",
    "EthosUQuantizer",
    "Evaluation",
    "Exploration",
    "Program",
    "QuantizationConfig",
    "Settings",
    "arm",
    "boards",
    "compile",
    "evaluate",
    "explore",
    "firmware",
    "language",
    "load",
    "quantize",
    "samples",
    "sqnr_db",
    "targets",
    "testing",
    "tosa",
    "tune",
    "tuning",
]

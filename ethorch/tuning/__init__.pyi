from . import compress
from .bias_and_rounding import correct_bias, round_weights
from .equalization import equalize
from .module_sensitivity import sensitivity
from .precision_search import mixed_precision
from .qat import convert_qat, freeze_qat, prepare_qat
from .rotation import rotate
from .smoothing import smooth

__all__ = [
    "compress",
    "convert_qat",
    "correct_bias",
    "equalize",
    "freeze_qat",
    "mixed_precision",
    "prepare_qat",
    "rotate",
    "round_weights",
    "sensitivity",
    "smooth",
]

"""The table of CPU operators in C: a function for each, which writes the call from the operator's arguments."""

from ethorch.deploy.firmware.operators import copies, cortex_m, elementwise, images, indexing, quantize, reductions, windows
from ethorch.deploy.firmware.operators.table import KERNELS

__all__ = ["KERNELS", "copies", "cortex_m", "elementwise", "images", "indexing", "quantize", "reductions", "windows"]

"""C code generators for the CPU operators, one function per operator."""

from ethorch.deploy.firmware.operators import copies, cortex_m, elementwise, images, indexing, quantize, reductions, windows
from ethorch.deploy.firmware.operators.table import KERNELS

__all__ = ["KERNELS", "copies", "cortex_m", "elementwise", "images", "indexing", "quantize", "reductions", "windows"]

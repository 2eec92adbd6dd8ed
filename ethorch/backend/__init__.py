"""ExecuTorch's entry to ethorch: backends that lower a partition, and partitioners that choose it."""

from ethorch.backend.compile import compile_program, tosa_graph
from ethorch.backend.preprocess import EthosUBackend, TOSABackend, lowered_delegates, register_quantized_kernels
from ethorch.vela.delegate import builder_for
from ethorch.vela.lowered import Lowered

__all__ = [
    "EthosUBackend",
    "Lowered",
    "TOSABackend",
    "builder_for",
    "compile_program",
    "lowered_delegates",
    "register_quantized_kernels",
    "tosa_graph",
]

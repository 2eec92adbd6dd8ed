"""The ``.pte`` writer, and the backends and partitioners that ExecuTorch calls."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from ethorch.backend.compile import compile_program, tosa_graph  # imports ExecuTorch, which takes 1.5 seconds

    # imports ExecuTorch, which takes 1.5 seconds
    from ethorch.backend.preprocess import EthosUBackend, TOSABackend, lowered_delegates, register_quantized_kernels

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "compile": ["compile_program", "tosa_graph"],
        "preprocess": ["EthosUBackend", "TOSABackend", "lowered_delegates", "register_quantized_kernels"],
    },
)

__all__ = ["EthosUBackend", "TOSABackend", "compile_program", "lowered_delegates", "register_quantized_kernels", "tosa_graph"]

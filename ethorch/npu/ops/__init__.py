"""Functions that prepare NPU_OP_* commands, registered in ``prepared.PREPARE`` on import."""

from __future__ import annotations

from ethorch.npu.ops import conv, dma, elementwise, pool, resize

__all__ = ["conv", "dma", "elementwise", "pool", "resize"]

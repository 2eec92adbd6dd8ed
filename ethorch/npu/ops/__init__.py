"""A function per NPU_OP_*; importing this package registers all of them in ``prepared.PREPARE``."""

from __future__ import annotations

from ethorch.npu.ops import conv, dma, elementwise, pool, resize

__all__ = ["conv", "dma", "elementwise", "pool", "resize"]

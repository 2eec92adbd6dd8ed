"""The operator graphs compared on every target; each module is a family of them."""

from __future__ import annotations

from tests.npu.cases import between, conv, elementwise, matmul, network, pool, rescale, shape
from tests.npu.cases.registry import CASES

__all__ = ["CASES", "between", "conv", "elementwise", "matmul", "network", "pool", "rescale", "shape"]

"""Estimate the cycles of command streams with Vela's formulas."""

from ethorch.npu.cycles.memories import MemoryRate, Regions, read_regions
from ethorch.npu.cycles.model import Effects, Estimate, OperatorCycles, estimate, list_traffic

__all__ = ["Effects", "Estimate", "MemoryRate", "OperatorCycles", "Regions", "estimate", "list_traffic", "read_regions"]

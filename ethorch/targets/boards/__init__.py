"""Boards with an Ethos-U: NPUs, memories and clocks, each value with its source."""

from __future__ import annotations

from ethorch.targets.boards.description import Board, Cpu, Memory, NpuSlot, Uart
from ethorch.targets.boards.loading import load, names

__all__ = ["Board", "Cpu", "Memory", "NpuSlot", "Uart", "load", "names"]

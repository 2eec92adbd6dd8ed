"""Boards with an Ethos-U as data: NPUs, memories and clocks, each figure with its source.

``load`` reads a Board: one of ``names()``, or a TOML file of the user's (``ethorch.targets.boards.loading`` says what it holds).
"""

from __future__ import annotations

from ethorch.targets.boards.description import Board, Cpu, Memory, NpuSlot, Uart
from ethorch.targets.boards.loading import load, names

__all__ = ["Board", "Cpu", "Memory", "NpuSlot", "Uart", "load", "names"]

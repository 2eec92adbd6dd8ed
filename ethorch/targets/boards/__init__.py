"""Boards with an Ethos-U as data, and firmware that runs on them: in this process, in QEMU, or on Arm's FVP.

::

    run = ethorch.targets.boards.run("firmware.elf", board="corstone-300", npu="ethos-u55-128")
    print(run.text, run.ok, run.npu_cycles, *run.faults, sep="\\n")
    run.trace("inference.json")          # for Perfetto or Chrome

``load`` reads a Board: one of ``names()``, or a TOML file of the user's (``ethorch.targets.boards.loading`` says what it holds).
"""

from __future__ import annotations

from ethorch.deploy.virtual_board.faults import Fault
from ethorch.deploy.virtual_board.inference import Inference
from ethorch.deploy.virtual_board.outcome import Run
from ethorch.deploy.virtual_board.runner import BACKENDS, run
from ethorch.targets.boards.description import Board, Cpu, Memory, NpuSlot, Uart
from ethorch.targets.boards.loading import load, names

__all__ = ["BACKENDS", "Board", "Cpu", "Fault", "Inference", "Memory", "NpuSlot", "Run", "Uart", "load", "names", "run"]

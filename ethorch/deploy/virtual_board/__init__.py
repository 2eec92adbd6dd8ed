r"""Run firmware on a virtual board: in this process, in QEMU, or on Arm's FVP.

::

    from ethorch.deploy import virtual_board

    run = virtual_board.run("firmware.elf", board="corstone-300", npu="ethos-u55-128")
    print(run.text, run.ok, run.npu_cycles, *run.faults, sep="\n")
    run.trace("inference.json")          # for Perfetto or Chrome
"""

from __future__ import annotations

from ethorch.deploy.virtual_board.faults import Fault
from ethorch.deploy.virtual_board.inference import Inference
from ethorch.deploy.virtual_board.outcome import Run
from ethorch.deploy.virtual_board.runner import BACKENDS, run

__all__ = ["BACKENDS", "Fault", "Inference", "Run", "run"]

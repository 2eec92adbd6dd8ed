"""Runs a .pte in this process: ExecuTorch's own runtime, ethorch's delegate, and the NPU simulator."""

from ethorch.runtime.host_program import HostProgram, load, npu_machine
from ethorch.runtime.measure import Allocated, measure

__all__ = ["Allocated", "HostProgram", "load", "measure", "npu_machine"]

from .allocations import Allocated, measure
from .host_program import HostProgram, load, npu_machine

__all__ = ["Allocated", "HostProgram", "load", "measure", "npu_machine"]

"""A bit-exact simulator of the Arm Ethos-U55, U65 and U85: runs the command streams Vela emits, on any desk."""

from ethorch.npu.files import run_vela
from ethorch.npu.machine import Machine
from ethorch.npu.program import Program
from ethorch.npu.sources import Source, Sources
from ethorch.npu.staging import staging_bytes

__all__ = ["Machine", "Program", "Source", "Sources", "run_vela", "staging_bytes"]

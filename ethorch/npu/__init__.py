"""A bit-exact simulator of the Arm Ethos-U55, U65 and U85: it runs the command streams that Vela emits, in NumPy."""

from __future__ import annotations

from ethorch.npu.machine import Machine
from ethorch.npu.program import Program
from ethorch.npu.source_map import Source, Sources
from ethorch.npu.staging import staging_bytes
from ethorch.npu.vela_files import run_vela

__all__ = ["Machine", "Program", "Source", "Sources", "run_vela", "staging_bytes"]

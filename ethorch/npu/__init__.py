"""A bit-exact simulator of the Arm Ethos-U55, U65 and U85: it runs the command streams that Vela emits."""

from __future__ import annotations

from ethorch.npu.batch import Place, run_many
from ethorch.npu.machine import Machine
from ethorch.npu.program import Program
from ethorch.npu.source_map import Source, Sources
from ethorch.npu.staging import staging_bytes
from ethorch.npu.vela_files import run_vela

__all__ = ["Machine", "Place", "Program", "Source", "Sources", "run_many", "run_vela", "staging_bytes"]

"""Vela in this process: TOSA flatbuffer in, command stream, constants, I/O map, estimates and operator table out."""

from ethorch.vela.compiled_model import Access, CompiledModel, Memory, Performance, ScheduledOp
from ethorch.vela.compiler import compile, options_text, system_text

__all__ = ["Access", "CompiledModel", "Memory", "Performance", "ScheduledOp", "compile", "options_text", "system_text"]

"""The Vela compiler, which converts TOSA flatbuffers to command streams, constants, tensor offsets and performance estimates."""

from ethorch.vela.compiled_model import CompiledModel, Performance, ScheduledOp
from ethorch.vela.compiler import compile, options_text, system_text

__all__ = ["CompiledModel", "Performance", "ScheduledOp", "compile", "options_text", "system_text"]

"""Compile the ExportedProgram of a partition to TOSA and to a command stream."""

from __future__ import annotations

from torch.export import ExportedProgram

from ethorch.lower.walk import lower_program
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.tosa.ir import Graph
from ethorch.vela.delegate import adapt_tuning, builder_for, compile_lowered, rewritten
from ethorch.vela.lowered import Lowered


def compile_program(program: ExportedProgram, spec: EthosUCompileSpec) -> Lowered:
    """Compile a quantized ExportedProgram with Vela, as one delegate.

    Raises:
        Unsupported: An operator cannot run on the target.
        VelaError: Vela rejected the graph. The message lists the rejected operators with source lines.
    """
    builder = builder_for(spec.target)
    return compile_lowered(lower_program(program, builder), builder.tuning, spec)


def tosa_graph(program: ExportedProgram, spec: EthosUCompileSpec | TosaCompileSpec) -> Graph:
    """Return the rewritten and verified TOSA graph of a quantized ExportedProgram. Raise Unsupported for unsupported operators."""
    builder = builder_for(spec.target)
    return rewritten(lower_program(program, builder), adapt_tuning(builder.tuning, spec), spec)

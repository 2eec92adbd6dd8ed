"""From a partition's ExportedProgram to TOSA, and on to a command stream."""

from __future__ import annotations

from torch.export import ExportedProgram

from ethorch.lower.walk import lower_program
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.tosa.ir import Graph
from ethorch.vela.delegate import builder_for, compile_lowered, rewritten
from ethorch.vela.lowered import Lowered


def compile_program(program: ExportedProgram, spec: EthosUCompileSpec) -> Lowered:
    """A quantized ExportedProgram, all of it, through TOSA and Vela.

    Raises:
        Unsupported: an operator cannot run on the target.
        VelaError: Vela declined the graph; the operators it declines by themselves are named with their source lines.
    """
    builder = builder_for(spec.target)
    return compile_lowered(lower_program(program, builder), builder.tuning, spec)


def tosa_graph(program: ExportedProgram, spec: EthosUCompileSpec | TosaCompileSpec) -> Graph:
    """A quantized ExportedProgram, all of it, as rewritten and verified TOSA.

    Raises:
        Unsupported: an operator cannot run on the target.
    """
    builder = builder_for(spec.target)
    return rewritten(lower_program(program, builder), builder.tuning, spec)

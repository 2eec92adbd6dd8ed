"""EthosUBackend: ``preprocess`` = lower, rewrite, compile, pack."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import final

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from ethorch import dumps, vela
from ethorch.compile_spec import EthosUCompileSpec
from ethorch.diagnose import explained
from ethorch.errors import EthorchError, VelaError
from ethorch.lower import lower_program
from ethorch.npu import Sources
from ethorch.payload import DelegatePayload
from ethorch.target import Target
from ethorch.tosa.builder import Builder
from ethorch.tosa.flatbuffer import serialize
from ethorch.tosa.ir import NOWHERE, Graph
from ethorch.tosa.rewrite import rewrite
from ethorch.tosa_spec import TosaCompileSpec, TosaTarget

logger = logging.getLogger(__name__)


def builder_for(target: Target | TosaTarget) -> Builder:
    """An empty Builder that checks what ``target`` can run and picks the forms it runs fastest."""
    return Builder(target.limits, forms=target.forms, target=target.name, floats=target.floats, integers=target.integers)


@dataclass(frozen=True)
class Lowered:
    """One delegate on its way: the TOSA graph, its flatbuffer, and what Vela made of it."""

    graph: Graph
    tosa: bytes
    compiled: vela.CompiledModel

    @property
    def payload(self) -> DelegatePayload:
        return DelegatePayload.from_compiled(self.compiled)

    @property
    def sources(self) -> Sources:
        """Which operator each command works for, with its place in the user's code."""
        ops = [op for region in self.graph.regions() for op in region.ops]
        origins = {op.result.name: str(op.result.origin) for op in ops if op.result.origin != NOWHERE}
        return Sources.from_schedule(self.compiled.rows(), origins)


def compile_program(program: ExportedProgram, spec: EthosUCompileSpec) -> Lowered:
    """A quantized ExportedProgram, all of it, through TOSA and Vela.

    Raises:
        Unsupported: an operator cannot run on the target.
        VelaError: Vela declined the graph; the operators it declines by themselves are named with their source lines.
    """
    graph = tosa_graph(program, spec)
    tosa = serialize(graph)
    try:
        return Lowered(graph, tosa, vela.compile(tosa, spec))
    except VelaError as error:
        raise explained(error, graph, spec) from error


def tosa_graph(program: ExportedProgram, spec: EthosUCompileSpec | TosaCompileSpec) -> Graph:
    """A quantized ExportedProgram, all of it, as rewritten and verified TOSA.

    Raises:
        Unsupported: an operator cannot run on the target.
    """
    builder = builder_for(spec.target)
    graph = rewrite(lower_program(program, builder), forms=builder.forms)
    graph.verify()
    return graph


@final
class EthosUBackend(BackendDetails):
    """ExecuTorch's entry to ethorch: makes the delegate blob that Ethos-U firmware and our host runtime read."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The delegate's payload for one partition."""
        spec = EthosUCompileSpec.from_list(compile_specs)
        lowered = compile_program(edge_program, spec)
        if spec.path_for_intermediates:
            dumps.write(Path(spec.path_for_intermediates), lowered.graph, lowered.tosa, lowered)
        return PreprocessResult(processed_bytes=lowered.payload.pack())


@final
class TOSABackend(BackendDetails):
    """ExecuTorch's entry to ethorch for flows that compile later: the delegate blob is the TOSA flatbuffer."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The TOSA flatbuffer of one partition."""
        spec = TosaCompileSpec.from_list(compile_specs)
        graph = tosa_graph(edge_program, spec)
        tosa = serialize(graph)
        if spec.path_for_intermediates:
            dumps.write(Path(spec.path_for_intermediates), graph, tosa)
        return PreprocessResult(processed_bytes=tosa)


def register_quantized_kernels() -> None:
    """Make ``to_executorch`` find the out variants of quantize and dequantize, which run on the CPU at the boundaries."""
    import executorch.kernels.quantized  # noqa: F401


def check_only_backend(backend: type[BackendDetails] = EthosUBackend) -> None:
    """Raise if another backend of that name is loaded: ExecuTorch finds backends by class name and could take that one.

    Raises:
        EthorchError: executorch.backends.arm was imported into this process.
    """
    name = backend.__name__
    others = [cls for cls in BackendDetails.__subclasses__() if cls.__name__ == name and cls is not backend]
    if others:
        raise EthorchError(
            f"two backends are called {name}: ethorch's and {others[0].__module__}'s, and ExecuTorch finds them by name. "
            "Do not import executorch.backends.arm in the process that lowers with ethorch."
        )

"""ExecuTorch backends: lower, rewrite, compile and pack a partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import get_lowered_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ethorch.backend.call_check import check_call
from ethorch.backend.compile import compile_program, tosa_graph
from ethorch.backend.handover import find_spec, is_attached
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.vela import artifacts
from ethorch.vela.lowered import Lowered

#: Metadata key of a lowered module for the ``_delegate_info_meta`` of ``preprocess``. Not stored in the .pte.
_INFO = "_delegate_info_meta"


@final
class EthosUBackend(BackendDetails):  # type: ignore[misc]  # ExecuTorch has no types
    """An ExecuTorch backend for Ethos-U. A delegate's blob is the payload that firmware and ``ethorch.runtime`` read."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Return the payload of one partition.

        Raises:
            Unsupported, VelaError: See ``compile_program``.
            EthorchError: The payload does not match the partition's inputs and outputs.
        """
        if namesake := _namesake(EthosUBackend, edge_program, compile_specs):
            return namesake.preprocess(edge_program, compile_specs)
        spec = find_spec(EthosUCompileSpec, edge_program, compile_specs)
        lowered = compile_program(edge_program, spec)
        check_call(edge_program, lowered.payload)
        if spec.path_for_intermediates:
            folder, debug = Path(spec.path_for_intermediates), spec.tosa_debug_mode
            artifacts.write(folder, lowered.graph, lowered.tosa, lowered.payload, lowered.sources, debug)
        return PreprocessResult(
            processed_bytes=lowered.payload.pack(), debug_handle_map=_handles(edge_program, lowered), _delegate_info_meta=lowered
        )


def _handles(program: ExportedProgram, lowered: Lowered) -> dict[str, tuple[int, ...]]:
    of_nodes = {node.name: node.meta.get("debug_handle") for node in program.graph.nodes}
    of_tensors = {op.result.name: of_nodes.get(op.result.origin.node) for region in lowered.graph.regions() for op in region.ops}
    handles = {str(source): of_tensors.get(source.name) for source in lowered.sources.all()}
    return {name: (handle,) for name, handle in handles.items() if handle is not None}


@final
class TOSABackend(BackendDetails):  # type: ignore[misc]  # ExecuTorch has no types
    """An ExecuTorch backend for TOSA. A delegate's blob is the TOSA flatbuffer."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        if namesake := _namesake(TOSABackend, edge_program, compile_specs):
            return namesake.preprocess(edge_program, compile_specs)
        spec = find_spec(TosaCompileSpec, edge_program, compile_specs)
        graph = tosa_graph(edge_program, spec)
        tosa = serialize(graph, locations=spec.tosa_debug_mode is TosaCompileSpec.DebugMode.TOSA)
        if spec.path_for_intermediates:
            artifacts.write(Path(spec.path_for_intermediates), graph, tosa, debug=spec.tosa_debug_mode)
        return PreprocessResult(processed_bytes=tosa, _delegate_info_meta=graph)


def lowered_delegates(program: ExportedProgram) -> list[Lowered]:
    """Return the compilation result of each Ethos-U delegate in a lowered edge program, in call order."""
    return [info for info in _infos(program.graph_module) if isinstance(info, Lowered)]


def lowered_graphs(module: GraphModule) -> list[Graph]:
    """Return the TOSA graph of each delegate, in call order."""
    graphs = [info.graph if isinstance(info, Lowered) else info for info in _infos(module)]
    return [graph for graph in graphs if isinstance(graph, Graph)]


def _infos(module: GraphModule) -> list[Any]:
    return [lowered.meta.get(_INFO) for _, lowered, _ in get_lowered_submodules(module) if lowered.meta]


def register_quantized_kernels() -> None:
    """Register the out variants of quantize and dequantize for ``to_executorch``."""
    import executorch.kernels.quantized  # noqa: F401


class _FoundBackends:  # replaces BackendDetails and hides backends with the name of an ethorch backend
    @staticmethod
    def __subclasses__() -> list[type[BackendDetails]]:
        backends = BackendDetails.__subclasses__()
        names = {backend.__name__: backend for backend in (EthosUBackend, TOSABackend)}
        return [backend for backend in backends if names.get(backend.__name__, backend) is backend]


def install() -> None:
    """Make ExecuTorch find ethorch's backends even though ``executorch.backends.arm`` has backends with the same names.

    Repeated calls have no effect.
    """
    backend_api.BackendDetails = _FoundBackends


def _namesake(backend: type[BackendDetails], program: ExportedProgram, specs: list[CompileSpec]) -> Any:
    others = [cls for cls in BackendDetails.__subclasses__() if cls.__name__ == backend.__name__ and cls is not backend]
    is_own = is_attached(program) or any(hasattr(spec, "from_ethorch") for spec in specs)
    return others[0] if others and not is_own else None

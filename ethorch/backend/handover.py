"""Pass the user's compile spec from a partitioner to ``preprocess`` in node metadata.

ExecuTorch's list of compile specs contains less information (see ``ArmCompileSpec.publish``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram
from torch.fx import Node

from ethorch.targets.compile_spec import ArmCompileSpec

SpecT = TypeVar("SpecT", bound=ArmCompileSpec)

_KEY = "ethorch_compile_spec"


def attach(nodes: Iterable[Node], spec: ArmCompileSpec) -> None:
    """Store ``spec`` in the nodes' metadata, which ExecuTorch copies to the program of the partition."""
    for node in nodes:
        node.meta[_KEY] = spec


def detach(nodes: Iterable[Node]) -> None:
    for node in nodes:
        node.meta.pop(_KEY, None)


def is_attached(program: ExportedProgram) -> bool:
    """Return True if one of ethorch's partitioners created ``program``."""
    return any(_KEY in node.meta for node in program.graph.nodes)


def find_spec(kind: type[SpecT], program: ExportedProgram, compile_specs: Iterable[CompileSpec]) -> SpecT:
    """Return the spec stored in the nodes, or else the spec from ``compile_specs``. Raise SpecError if the latter is invalid."""
    for node in program.graph.nodes:
        spec = node.meta.get(_KEY)
        if isinstance(spec, kind):
            return spec
    return kind.from_list(compile_specs)

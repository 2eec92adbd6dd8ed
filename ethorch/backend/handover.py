"""What a partitioner hands to ``preprocess``: the compile spec as the user gave it, on the nodes of the partition.

The list of compile specs that ExecuTorch passes on is what a .pte keeps, and says less: see ``ArmCompileSpec.publish``.
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
    """Leave ``spec`` on the nodes of a partition; ExecuTorch keeps metadata when it makes a program of them."""
    for node in nodes:
        node.meta[_KEY] = spec


def detach(nodes: Iterable[Node]) -> None:
    """Undo ``attach``."""
    for node in nodes:
        node.meta.pop(_KEY, None)


def is_attached(program: ExportedProgram) -> bool:
    """Return True if a partitioner of ethorch made ``program``."""
    return any(_KEY in node.meta for node in program.graph.nodes)


def attached(kind: type[SpecT], program: ExportedProgram, compile_specs: Iterable[CompileSpec]) -> SpecT:
    """The spec on the nodes of ``program``; where no partitioner of ethorch left one, what the list says.

    Raises:
        SpecError: the list is not one that ``kind`` reads.
    """
    for node in program.graph.nodes:
        spec = node.meta.get(_KEY)
        if isinstance(spec, kind):
            return spec
    return kind.from_list(compile_specs)

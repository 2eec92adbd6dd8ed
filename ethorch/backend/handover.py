"""What a partitioner hands to ``preprocess``: the compile spec as the user gave it, on the nodes of the partition.

A .pte keeps the compile specs of each delegate word for word. What they say there must not depend on whose computer made
the file, nor on the folder that artifacts went to: the same model gives the same bytes everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram
from torch.fx import Node

from ethorch.target.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.target.vela_ini import shipped_configs

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


def published(spec: ArmCompileSpec) -> list[CompileSpec]:
    """The compile specs that a .pte keeps: no folder of artifacts, ini files by their names alone, no flag without effect.

    Raises:
        SpecError: the spec asks for debug information and names no folder.
    """
    spec.to_list()
    public = copy.copy(spec).dump_intermediate_artifacts_to(None).dump_debug_info(None)
    if isinstance(public, EthosUCompileSpec):
        shipped = shipped_configs()
        public.config_files = tuple(name if name in shipped else Path(name).name for name in public.config_files)
        public.flags = {name: value for name, value in public.flags.items() if name not in public.flags_without_effect}
    return public.to_list()

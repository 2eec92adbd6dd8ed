"""A partitioner's ``additional_checks``, asked about each operator under all of its names.

Which operators of a program stay whole differs between partitioners, and so do the names of its nodes. A check for ``convolution``
has to find the ``conv2d`` that ethorch keeps whole, and one for attention the products that the quantizer made of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.passes.operator_support import OperatorSupportBase

from ethorch.backend.break_up import break_up, edge_operator, parts_of
from ethorch.backend.products_on_cpu import LEFT_TO_CPU
from ethorch.backend.tagging import plumbing
from ethorch.lower.fx.control_flow import nodes_everywhere
from ethorch.lower.fx.node import Converted, overload_of
from ethorch.support.errors import Reason

logger = logging.getLogger(__name__)

_ORIGINAL = "original_aten"


@dataclass(frozen=True)
class _Alias:
    """An operator and a name under which a check may look for a node.

    Attributes:
        original: The operator that PyTorch's tracer recorded for the node, which ``DontPartition`` compares with strings.
    """

    target: Any
    name: str
    original: Any


class UserChecks:
    """The checks, and which of them have refused an operator so far."""

    def __init__(self, checks: Sequence[OperatorSupportBase]):
        self.checks = list(checks)
        self._matched: set[int] = set()
        self._logged: set[tuple[int, str]] = set()

    def refusals(self, program: ExportedProgram | Converted) -> dict[Node, Reason]:
        """Return a reason for each operator that a check refuses, itself or a part that ExecuTorch would break it up into."""
        return {node: reason for node, (reason, _) in self._refused(program).items()}

    def break_up(self, program: ExportedProgram, nodes: Sequence[Node]) -> None:
        """Break up operators of an edge program that stay on the CPU, which has kernels for their parts only."""
        refused = self._refused(program)
        for node in nodes:
            reason, is_all = refused.get(node, (None, False))
            for part in break_up(program, [node]):
                if is_all:
                    part.meta[LEFT_TO_CPU] = reason

    def warn(self) -> None:
        """Log a warning for each check that has refused no operator."""
        for check in self.without_match():
            logger.warning(
                "the check %s(%s) matches no operator of the program; see the names in edge_program.graph, or use exact=False "
                "[user.check_matches_nothing]",
                type(check).__name__,
                ", ".join(f"{name}={value}" for name, value in vars(check).items() if value is not None),
            )

    def without_match(self) -> list[OperatorSupportBase]:
        """Return the checks that have refused no operator."""
        return [check for number, check in enumerate(self.checks) if number not in self._matched]

    def _refusing(self, modules: Any, node: Node, alias: _Alias) -> Iterator[int]:
        """The numbers of the checks that refuse the node under this alias."""
        is_own = alias.target is node.target
        with _renamed(node, alias):
            for number, check in enumerate(self.checks):
                try:
                    supports = check.is_node_supported(modules, node)
                except Exception:
                    if is_own:
                        raise
                    continue  # it reads arguments that only the other operator has
                if not supports:
                    yield number

    def _refused(self, program: ExportedProgram | Converted) -> dict[Node, tuple[Reason, bool]]:
        """(Reason, whether the check refuses the operator itself and not only a part) for each refused operator."""
        if not self.checks:
            return {}
        modules = dict(program.graph_module.named_modules())
        found: dict[Node, tuple[Reason, bool]] = {}
        numbering: dict[Graph, Graph] = {}
        for node in nodes_everywhere(program.graph):
            if node.op != "call_function":
                continue
            parts = [part for part in parts_of(node) if not plumbing(part)]
            scratch = numbering.setdefault(node.graph, Graph())
            names = [_appended(scratch, part) for part in parts or [node]]  # as if nothing stayed whole
            if plumbing(node):
                continue
            aliases = _aliases(node, node.name if parts else names[0])
            by_itself = {number for alias in aliases for number in self._refusing(modules, node, alias)}
            by_part = {
                number
                for part, name in zip(parts, names, strict=bool(parts))
                for original in (overload_of(part.target), overload_of(node.target))
                for number in self._refusing(modules, part, _Alias(part.target, name, original))
            }
            self._matched |= by_itself | by_part
            for number in by_itself or by_part:
                name = type(self.checks[number]).__name__
                if (number, node.name) not in self._logged:  # partitioners are asked several times for one program
                    self._logged.add((number, node.name))
                    logger.info("Rejected by %s: %s", name, node.name)
                reason = Reason(
                    "user.check",
                    f"rejected by {name}",
                    "Take it out of the partitioner's additional_checks.",
                )
                found[node] = reason, bool(by_itself)
        return found


def _aliases(node: Node, name: str) -> Iterator[_Alias]:
    """The operators and names of one node: its own, and those of the nodes that it was made of."""
    own = overload_of(node.target)
    yield _Alias(node.target, node.name, node.meta.get(_ORIGINAL, own))
    yield _Alias(node.target, name, own)
    yield _Alias(own, node.name, own)
    known = {own: node.name} if node.target is own else {}
    sources = list(node.meta.get("from_node") or ())
    while sources:
        source = sources.pop(0)
        sources += source.from_node or ()
        target = _resolved(source.target)
        if target is not None:
            yield _Alias(target, source.name, target)
            if target is not own:
                known.setdefault(target, source.name)
    for aten, aten_name in known.items():
        edge = edge_operator(aten)
        if edge is not None:
            number = aten_name.rpartition("_")[2]
            first = _appended(Graph(), edge)
            yield _Alias(edge, f"{first}_{number}" if number.isdecimal() else first, aten)


def _appended(graph: Graph, node: Any) -> str:
    """The name that an operator gets at the end of a graph."""
    return graph.call_function(getattr(node, "target", node)).name


@lru_cache(maxsize=4096)
def _resolved(name: str) -> torch._ops.OpOverload | None:
    """The operator called ``aten.softmax.int``."""
    value: Any = torch.ops
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, torch._ops.OpOverload) else None


@contextmanager
def _renamed(node: Node, alias: _Alias) -> Iterator[None]:
    """The node with the target and the name of an alias."""
    target, name, had, original = node.target, node.name, _ORIGINAL in node.meta, node.meta.get(_ORIGINAL)
    node.target, node.name, node.meta[_ORIGINAL] = alias.target, alias.name, alias.original
    try:
        yield
    finally:
        node.target, node.name = target, name
        if had:
            node.meta[_ORIGINAL] = original
        else:
            del node.meta[_ORIGINAL]

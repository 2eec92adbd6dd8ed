"""Apply a partitioner's ``additional_checks`` to each operator under all of its names.

A check for ``convolution`` must match ``conv2d``, and a check for attention must match its matrix products.
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
from ethorch.backend.tagging import is_plumbing
from ethorch.lower.fx.control_flow import nodes_everywhere
from ethorch.lower.fx.node import Converted, overload_of
from ethorch.support.errors import Reason

logger = logging.getLogger(__name__)

_ORIGINAL = "original_aten"


@dataclass(frozen=True)
class _Alias:
    target: Any
    name: str  # name that a check may search for
    original: Any  # operator recorded by PyTorch's tracer, which ``DontPartition`` compares with strings


class UserChecks:
    """The user's checks, and a record of the checks that have refused an operator."""

    def __init__(self, checks: Sequence[OperatorSupportBase]):
        self.checks = list(checks)
        self._matched: set[int] = set()
        self._logged: set[tuple[int, str]] = set()

    def refusals(self, program: ExportedProgram | Converted) -> dict[Node, Reason]:
        """Return a reason for each operator that a check refuses directly or after decomposition."""
        return {node: reason for node, (reason, _) in self._find_refusals(program).items()}

    def break_up(self, program: ExportedProgram, nodes: Sequence[Node]) -> None:
        """Decompose operators that stay on the CPU, because the CPU has kernels only for the resulting operators."""
        refusals = self._find_refusals(program)
        for node in nodes:
            reason, is_all = refusals.get(node, (None, False))
            for part in break_up(program, [node]):
                if is_all:
                    part.meta[LEFT_TO_CPU] = reason

    def warn(self) -> None:
        """Log a warning for each check that has not refused any operator."""
        for check in self.without_match():
            logger.warning(
                "the check %s(%s) matches no operator of the program; see the names in edge_program.graph, or use exact=False "
                "[user.check_matches_nothing]",
                type(check).__name__,
                ", ".join(f"{name}={value}" for name, value in vars(check).items() if value is not None),
            )

    def without_match(self) -> list[OperatorSupportBase]:
        return [check for number, check in enumerate(self.checks) if number not in self._matched]

    def _refusing(self, modules: Any, node: Node, alias: _Alias) -> Iterator[int]:
        is_own = alias.target is node.target
        with _rename(node, alias):
            for number, check in enumerate(self.checks):
                try:
                    supports = check.is_node_supported(modules, node)
                except Exception:
                    if is_own:
                        raise
                    continue  # the check reads arguments that only the alias's schema has
                if not supports:
                    yield number

    def _find_refusals(self, program: ExportedProgram | Converted) -> dict[Node, tuple[Reason, bool]]:
        if not self.checks:
            return {}
        modules = dict(program.graph_module.named_modules())
        refusals: dict[Node, tuple[Reason, bool]] = {}
        numbering: dict[Graph, Graph] = {}
        for node in nodes_everywhere(program.graph):
            if node.op != "call_function":
                continue
            parts = [part for part in parts_of(node) if not is_plumbing(part)]
            scratch = numbering.setdefault(node.graph, Graph())
            names = [_name_in(scratch, part) for part in parts or [node]]  # names after decomposition of all operators
            if is_plumbing(node):
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
                if (number, node.name) not in self._logged:  # ExecuTorch calls partitioners several times for one program
                    self._logged.add((number, node.name))
                    logger.info("Rejected by %s: %s", name, node.name)
                reason = Reason(
                    "user.check",
                    f"the check {name} rejects the operator",
                    "Remove the check from additional_checks of the partitioner.",
                )
                refusals[node] = reason, bool(by_itself)
        return refusals


def _aliases(node: Node, name: str) -> Iterator[_Alias]:
    overload = overload_of(node.target)
    yield _Alias(node.target, node.name, node.meta.get(_ORIGINAL, overload))
    yield _Alias(node.target, name, overload)
    yield _Alias(overload, node.name, overload)
    names = {overload: node.name} if node.target is overload else {}
    sources = list(node.meta.get("from_node") or ())
    while sources:
        source = sources.pop(0)
        sources += source.from_node or ()
        target = _find_operator(source.target)
        if target is not None:
            yield _Alias(target, source.name, target)
            if target is not overload:
                names.setdefault(target, source.name)
    for aten, aten_name in names.items():
        edge = edge_operator(aten)
        if edge is not None:
            number = aten_name.rpartition("_")[2]
            first = _name_in(Graph(), edge)
            yield _Alias(edge, f"{first}_{number}" if number.isdecimal() else first, aten)


def _name_in(graph: Graph, node: Any) -> str:
    return graph.call_function(getattr(node, "target", node)).name


@lru_cache(maxsize=4096)
def _find_operator(name: str) -> torch._ops.OpOverload | None:
    value: Any = torch.ops
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, torch._ops.OpOverload) else None


@contextmanager
def _rename(node: Node, alias: _Alias) -> Iterator[None]:
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

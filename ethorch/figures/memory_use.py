"""Does the whole application fit a board? What each memory has to hold, against its size."""

from __future__ import annotations

from dataclasses import dataclass

from ethorch.figures import MemoryReport
from ethorch.targets.boards.memory_roles import Roles

#: How the name of a budget begins that a memory of the board sets: ``memory sram``.
MEMORY = "memory "
_ROLES = {"scratch": "feature_maps", "staging": "staging", "weights": "constants", "command_streams": "constants"}


@dataclass(frozen=True)
class MemoryUse:
    """A memory of the board that the NPU works on.

    Attributes:
        memory: its name.
        needs_bytes: what the program has in it.
        size_bytes: how large it is.
    """

    memory: str
    needs_bytes: int
    size_bytes: int


def uses(report: MemoryReport, roles: Roles) -> tuple[MemoryUse, ...]:
    """What the NPU's part of a program takes of each memory: feature maps, staging, weights and command streams.

    What the CPU has besides may lie in any memory; the budgets ``ram`` and ``flash`` count it.
    """
    needs = {memory.name: 0 for memory in (roles.feature_maps, roles.staging, roles.constants)}
    sizes = {memory.name: memory.size_bytes for memory in (roles.feature_maps, roles.staging, roles.constants)}
    for component in report.components:
        if component.name in _ROLES:
            memory = getattr(roles, _ROLES[component.name])
            needs[memory.name] += max(component.ram_bytes, component.flash_bytes)
    return tuple(MemoryUse(name, needed, sizes[name]) for name, needed in needs.items())

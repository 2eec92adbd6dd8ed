from __future__ import annotations

from dataclasses import dataclass

from ethorch.figures import MemoryReport
from ethorch.targets.boards.memory_roles import Roles

#: Prefix of budgets for single memories of a board, e.g. ``memory sram``.
MEMORY = "memory "
_ROLES = {"scratch": "feature_maps", "staging": "staging", "weights": "constants", "command_streams": "constants"}


@dataclass(frozen=True)
class MemoryUse:
    """The bytes that a program requires in one memory of a board, and the size of the memory."""

    memory: str
    needs_bytes: int
    size_bytes: int


def uses(report: MemoryReport, roles: Roles) -> tuple[MemoryUse, ...]:
    """Return the bytes required in each memory for feature maps, staging, weights and command streams.

    CPU data is not included, because any memory can store it. The budgets ``ram`` and ``flash`` include CPU data.
    """
    needs_by_memory = {memory.name: 0 for memory in (roles.feature_maps, roles.staging, roles.constants)}
    size_by_memory = {memory.name: memory.size_bytes for memory in (roles.feature_maps, roles.staging, roles.constants)}
    for component in report.components:
        if component.name in _ROLES:
            memory = getattr(roles, _ROLES[component.name])
            needs_by_memory[memory.name] += max(component.ram_bytes, component.flash_bytes)
    return tuple(MemoryUse(name, needs_bytes, size_by_memory[name]) for name, needs_bytes in needs_by_memory.items())

"""Settings of a firmware run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ethorch.npu import Sources
from ethorch.npu.registers import Npu
from ethorch.targets.boards.description import NpuSlot


@dataclass(frozen=True)
class Settings:
    """The arguments of :func:`run`."""

    npus: tuple[tuple[NpuSlot, Npu], ...]
    timeout: float
    max_instructions: int | None = None
    arguments: str = ""
    data: Mapping[int, bytes] = field(default_factory=dict)
    sources: Mapping[str, Sources] = field(default_factory=dict)
    cycles: Mapping[str, int] = field(default_factory=dict)
    inject: tuple[str, ...] = ()
    on_text: Callable[[str], None] | None = None

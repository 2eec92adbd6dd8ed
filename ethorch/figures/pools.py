"""Pools: the memory that a firmware with ExecuTorch has to give its runtime, for each method of a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ethorch.figures.memory import memory
from ethorch.formats import pte
from ethorch.formats.payload import BACKEND_ID, DelegatePayload


@dataclass(frozen=True)
class Pools:
    """What ``MemoryManager`` is made of, on a Cortex-M, in bytes.

    Attributes:
        method: the entry point.
        method_pool_bytes: of the method allocator, from an aligned beginning (``figures.method_pool``).
        delegate_bytes: of the same allocator, what ethorch's delegate for Cortex-M takes; Arm's takes it from the heap instead.
        temporary_pool_bytes: of the temporary allocator: the largest scratch region, or what kernels want.
        planned_bytes: each buffer of the memory plan, in the plan's order.
        io_bytes: inputs and outputs that the plan leaves to the application.
        fast_bytes: the NPU's staging memory (region 2), a buffer of the firmware's own.
    """

    method: str
    method_pool_bytes: int
    delegate_bytes: int
    temporary_pool_bytes: int
    planned_bytes: tuple[int, ...]
    io_bytes: int
    fast_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of them."""
        pools = self.method_pool_bytes + self.delegate_bytes + self.temporary_pool_bytes
        return pools + sum(self.planned_bytes) + self.io_bytes + self.fast_bytes

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "planned_bytes": list(self.planned_bytes), "total_bytes": self.total_bytes}

    def __str__(self) -> str:
        planned = ", ".join(f"{size:,}" for size in self.planned_bytes) or "none"
        rows = [
            ("method pool", f"{self.method_pool_bytes:,}"),
            ("method pool, for ethorch's delegate", f"{self.delegate_bytes:,}"),
            ("temporary pool", f"{self.temporary_pool_bytes:,}"),
            ("planned buffers", planned),
            ("inputs and outputs outside of the plan", f"{self.io_bytes:,}"),
            ("fast memory of the NPU", f"{self.fast_bytes:,}"),
            ("in all", f"{self.total_bytes:,}"),
        ]
        return "\n".join([f"method {self.method!r}, bytes on a Cortex-M:", *(f"  {title:<40}{text:>16}" for title, text in rows)])


def _delegate(payload: DelegatePayload) -> int:
    """``Delegate`` of runtime/cpp/ethosu_backend.cpp on 32 bits, with a pointer for each tensor."""
    return 48 + 4 * (len(payload.inputs) + len(payload.outputs))


def pools(data: bytes) -> tuple[Pools, ...]:
    """The pools of each method of a .pte, given its contents.

    Raises:
        EthorchError, ProgramError, PayloadError, MachineFault: as of ``figures.memory``.
    """
    found = []
    for name, method in pte.read(data).methods.items():
        if pte.is_figure(method):
            continue
        report = memory(data, name)
        by_name = {component.name: component.ram_bytes for component in report.components}
        found.append(
            Pools(
                name,
                report.method_pool_bytes,
                sum(_delegate(d.payload) for d in method.delegates if d.id == BACKEND_ID),
                report.temporary_bytes,
                tuple(method.memories[1:]),
                by_name.get("unplanned_io", 0),
                by_name.get("staging", 0),
            )
        )
    return tuple(found)

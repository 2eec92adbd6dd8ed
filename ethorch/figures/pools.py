from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ethorch.figures.memory import memory
from ethorch.formats import pte
from ethorch.formats.payload import BACKEND_ID, DelegatePayload


@dataclass(frozen=True)
class Pools:
    """The sizes of the pools for ExecuTorch's ``MemoryManager`` on a Cortex-M.

    Attributes:
        method_pool_bytes: Method allocator. See ``figures.method_pool``.
        delegate_bytes: Additional bytes of the method allocator for ethorch's EthosUBackend. Arm's uses the heap instead.
        temporary_pool_bytes: Temporary allocator (largest of scratch region, kernel memory and kernel lookup).
        planned_bytes: Buffers in the memory plan, in order.
        io_bytes: Inputs and outputs that the application allocates, outside the memory plan.
        fast_bytes: Staging memory of the NPU (region 2), which the firmware allocates.
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
        """The sum of all pools."""
        pools = self.method_pool_bytes + self.delegate_bytes + self.temporary_pool_bytes
        return pools + sum(self.planned_bytes) + self.io_bytes + self.fast_bytes

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {**asdict(self), "planned_bytes": list(self.planned_bytes), "total_bytes": self.total_bytes}

    def __str__(self) -> str:
        planned = ", ".join(f"{size:,}" for size in self.planned_bytes) or "none"
        rows = [
            ("method pool", f"{self.method_pool_bytes:,}"),
            ("method pool, ethorch's EthosUBackend", f"{self.delegate_bytes:,}"),
            ("temporary pool", f"{self.temporary_pool_bytes:,}"),
            ("planned buffers", planned),
            ("unplanned inputs and outputs", f"{self.io_bytes:,}"),
            ("staging memory of the NPU", f"{self.fast_bytes:,}"),
            ("total", f"{self.total_bytes:,}"),
        ]
        return "\n".join(
            [f"pools for method {self.method!r} on a Cortex-M, in bytes:", *(f"  {title:<40}{text:>16}" for title, text in rows)]
        )


def _delegate_bytes(payload: DelegatePayload) -> int:
    """Return the size of ``Delegate`` (runtime/cpp/ethosu_backend.cpp) on a Cortex-M, including one pointer per tensor."""
    return 48 + 4 * (len(payload.inputs) + len(payload.outputs))


def pools(data: bytes) -> tuple[Pools, ...]:
    """Return the memory pools that each method of a .pte requires.

    Raises:
        EthorchError, ProgramError, PayloadError, MachineFault: See :func:`ethorch.figures.memory`.
    """
    method_pools = []
    for name, method in pte.read(data).methods.items():
        if pte.is_figure(method):
            continue
        report = memory(data, name)
        by_name = {component.name: component.ram_bytes for component in report.components}
        method_pools.append(
            Pools(
                name,
                report.method_pool_bytes,
                sum(_delegate_bytes(d.payload) for d in method.delegates if d.id == BACKEND_ID),
                report.temporary_bytes,
                tuple(method.memories[1:]),
                by_name.get("unplanned_io", 0),
                by_name.get("staging", 0),
            )
        )
    return tuple(method_pools)

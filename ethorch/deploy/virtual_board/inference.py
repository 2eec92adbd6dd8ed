"""Inference: what one run of the NPU did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Inference:
    """One run of the NPU.

    Attributes:
        stream: SHA-256 of the command stream, as ``run`` takes it for ``sources`` and ``cycles``.
        stream_address, stream_bytes: where it lies.
        started: instructions that the CPU had executed before it, None where nobody counts.
        cycles: of the NPU's clock, estimated.
        estimated_by: ``vela`` where its figures were given, else ``board``: multipliers and bandwidths.
        seconds: of simulation, decoding the stream included.
        read_bytes, written_bytes: per region.
        macs: multiplications.
        memories: name of the memory that each region lies in.
        status: STATUS at its end.
        operators: (name, cycles) in the order of execution.
        ended: CPU's instructions at its end.
    """

    stream: str
    stream_address: int
    stream_bytes: int
    started: int | None
    ended: int | None = None
    cycles: int = 0
    estimated_by: str = ""
    seconds: float = 0.0
    macs: int = 0
    status: int = 0
    read_bytes: dict[int, int] = field(default_factory=dict)
    written_bytes: dict[int, int] = field(default_factory=dict)
    memories: dict[int, str] = field(default_factory=dict)
    operators: list[tuple[str, int]] = field(default_factory=list, repr=False)

    def to_json(self) -> dict[str, Any]:
        """As plain data; ``operators`` are in the trace."""
        found = asdict(self)
        del found["operators"]
        return found

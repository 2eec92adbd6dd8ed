from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Inference:
    """One run of the NPU.

    Attributes:
        stream: SHA-256 of the command stream, the key in the arguments ``sources`` and ``cycles`` of ``run``.
        stream_address, stream_bytes: Address and size of the stream.
        started, ended: Number of CPU instructions executed before the start and before the end, or None if not counted.
        cycles: Estimated NPU cycles.
        estimated_by: ``vela`` if Vela's cycles were passed, otherwise ``board`` (a lower bound from MACs and bandwidths).
        seconds: Simulation time, including decoding of the stream.
        read_bytes, written_bytes: Region -> accessed bytes.
        memories: Region -> name of its memory on the board.
        operators: Tuples (name, cycles) in execution order.
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
        """Return JSON-compatible data, without ``operators``, which the trace contains."""
        fields = asdict(self)
        del fields["operators"]
        return fields

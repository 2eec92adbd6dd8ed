"""Write Perfetto and Chrome traces of virtual board runs: CPU activity between NPU runs, and the operators of NPU runs.

Traces assume one CPU instruction per cycle. NPU cycles are estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ethorch.deploy.virtual_board.inference import Inference

_MICROSECONDS = 1e6
_CPU, _NPU = 1, 2


@dataclass(frozen=True)
class Clocks:
    """The CPU and NPU clocks in Hz."""

    cpu_hz: float
    npu_hz: float


def events(title: str, instructions: int, inferences: Sequence[Inference], clocks: Clocks) -> dict[str, Any]:
    """Return the trace in Chrome's JSON format, with times in microseconds.

    Args:
        title: Process name in the trace.
        inferences: NPU runs, ordered by start time.
    """
    rows: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": title}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": _CPU, "args": {"name": "CPU"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": _NPU, "args": {"name": "NPU"}},
    ]
    now, executed = 0.0, 0
    for number, inference in enumerate(inferences):
        until = inference.started or 0
        now = _cpu(rows, clocks, now, until - executed)
        took = inference.cycles / clocks.npu_hz * _MICROSECONDS
        arguments = {
            "cycles": inference.cycles,
            "estimated by": inference.estimated_by,
            "MACs": inference.macs,
            "read bytes": inference.read_bytes,
            "written bytes": inference.written_bytes,
            "memories": inference.memories,
            "STATUS": f"{inference.status:#010x}",
        }
        rows.append(_span(f"inference {number}", _NPU, now, took, arguments))
        start = now
        for name, cycles in inference.operators:
            lasts = cycles / clocks.npu_hz * _MICROSECONDS
            rows.append(_span(name, _NPU, start, lasts, {"cycles": cycles}))
            start += lasts
        now += took
        executed = inference.ended or until
    _cpu(rows, clocks, now, instructions - executed)
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def _cpu(rows: list[dict[str, Any]], clocks: Clocks, now: float, instructions: int) -> float:
    took = max(instructions, 0) / clocks.cpu_hz * _MICROSECONDS
    if took:
        rows.append(_span("CPU", _CPU, now, took, {"instructions": instructions}))
    return now + took


def _span(name: str, thread: int, start: float, duration: float, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": 1, "tid": thread, "ts": start, "dur": duration, "args": arguments}

"""A timeline of a program's layers on the lanes NPU, DMA and CPU, and a trace for Perfetto or Chrome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ethorch.figures.layer import CPU, NPU, Layer
from ethorch.support.errors import EthorchError

DMA = "DMA"
LANES = (NPU, DMA, CPU)
_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Event:
    """An interval on a lane.

    Attributes:
        name, layer: Name and index of the layer.
        lane: ``NPU``, ``DMA`` or ``CPU``.
        start_cycles, duration_cycles: NPU clock cycles.
    """

    name: str
    lane: str
    layer: int
    start_cycles: int
    duration_cycles: int

    @property
    def end_cycles(self) -> int:
        return self.start_cycles + self.duration_cycles

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)


def timeline(layers: Sequence[Layer], cpu_clock_ratio: float = 1.0) -> tuple[Event, ...]:
    """Schedule layers sequentially, but start weight transfers during the previous layer if it runs on the NPU.

    Omit layers with 0 cycles.

    Args:
        cpu_clock_ratio: CPU clock divided by NPU clock.

    Raises:
        EthorchError: The cycles of a layer are unknown, or the ratio is not positive.
    """
    if not cpu_clock_ratio > 0:
        raise EthorchError(f"cpu_clock_ratio: expected a positive number, got {cpu_clock_ratio}. Pass CPU clock / NPU clock.")
    events: list[Event] = []
    now = previous_start = 0  # start of the previous NPU operation
    for layer in layers:
        if layer.cycles is None:
            raise EthorchError(
                f"the cycles of layer {layer.index} ({layer.name}) are unknown, because a .pte does not record them. "
                "Compile the model, or pass the folder written by dump_intermediate_artifacts_to() as sources."
            )
        cycles = layer.cycles if layer.where == NPU else round(layer.cycles / cpu_clock_ratio)
        if layer.transfer_cycles:
            start = max(previous_start, now - layer.transfer_cycles)
            events.append(Event(layer.name, DMA, layer.index, start, layer.transfer_cycles))
        if cycles:
            events.append(Event(layer.name, layer.where, layer.index, now, cycles))
            previous_start = now if layer.where == NPU else now + cycles
        now += cycles
    return tuple(events)


def trace_events(layers: Sequence[Layer], core_clock_hz: float, cpu_clock_hz: float | None = None) -> dict[str, Any]:
    """Return the timeline in Chrome's trace format, as JSON-compatible data.

    Each lane is a thread. Times are in microseconds. Events contain the properties of their layers.

    Args:
        core_clock_hz: NPU clock. See ``EthosUCompileSpec.memory_system``.
        cpu_clock_hz: CPU clock. Default: the NPU clock.

    Raises:
        EthorchError: A clock is not positive, or the cycles of a layer are unknown.
    """
    cpu_clock_hz = core_clock_hz if cpu_clock_hz is None else cpu_clock_hz
    for name, clock_hz in (("core_clock_hz", core_clock_hz), ("cpu_clock_hz", cpu_clock_hz)):
        if not clock_hz > 0:
            raise EthorchError(f"{name}: expected a positive number, got {clock_hz}. Pass the clock frequency in Hz.")
    by_index = {layer.index: layer for layer in layers}
    threads = {lane: number for number, lane in enumerate(LANES, 1)}
    scale = _MICROSECONDS / core_clock_hz
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "ethorch, estimated"}},
        *({"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": lane}} for lane, number in threads.items()),
    ]
    for event in timeline(layers, cpu_clock_hz / core_clock_hz):
        layer = by_index[event.layer]
        events.append(
            {
                "name": f"{event.name} weights" if event.lane == DMA else event.name,
                "cat": event.lane,
                "ph": "X",
                "pid": 1,
                "tid": threads[event.lane],
                "ts": event.start_cycles * scale,
                "dur": event.duration_cycles * scale,
                "args": {
                    "layer": layer.index,
                    "operator": layer.operator,
                    "operators": ", ".join(layer.operators),
                    "module": layer.module,
                    "source": layer.source,
                    "cycles": event.duration_cycles,
                    "macs": layer.macs,
                    "bound": layer.bound,
                },
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}

"""A program's layers as a sequence in time, for the lanes NPU, DMA and CPU, and as a trace for Perfetto or Chrome.

Vela estimates each operation by itself, so the sequence is the sum of its estimates; a transfer of weights is shown where Vela's
schedule hides it, while the operation before computes. Cycles of the CPU are estimates of ``figures.cpu_rates``.
"""

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
    """Something that takes time on a lane.

    Attributes:
        name: of the layer.
        lane: ``NPU``, ``DMA`` or ``CPU``.
        layer: its index.
        start_cycles, duration_cycles: of the NPU's clock.
    """

    name: str
    lane: str
    layer: int
    start_cycles: int
    duration_cycles: int

    @property
    def end_cycles(self) -> int:
        """When it is over."""
        return self.start_cycles + self.duration_cycles

    def to_json(self) -> dict[str, Any]:
        """The event as plain data; keys are the attributes' names."""
        return asdict(self)


def timeline(layers: Sequence[Layer], cpu_clock_ratio: float = 1.0) -> tuple[Event, ...]:
    """The layers one after the other, each on its lane, with the transfers that run beside them; those without cycles are left out.

    Args:
        layers: of ``figures.layers``.
        cpu_clock_ratio: the CPU's clock by the NPU's.

    Raises:
        EthorchError: the cycles of a layer are unknown, as of a .pte without ``sources``; or the ratio is not positive.
    """
    if not cpu_clock_ratio > 0:
        raise EthorchError(f"cpu_clock_ratio is {cpu_clock_ratio}; it is the CPU's clock by the NPU's, a positive number.")
    events: list[Event] = []
    now = before = 0  # where the operation before on the NPU began
    for layer in layers:
        if layer.cycles is None:
            raise EthorchError(
                f"the cycles of layer {layer.index} ({layer.name}) are not known: a .pte holds commands, not how long they take. "
                "Build the model, or give the folder that dump_intermediate_artifacts_to() named as sources."
            )
        cycles = layer.cycles if layer.where == NPU else round(layer.cycles / cpu_clock_ratio)
        if layer.transfer_cycles:
            start = max(before, now - layer.transfer_cycles)
            events.append(Event(layer.name, DMA, layer.index, start, layer.transfer_cycles))
        if cycles:
            events.append(Event(layer.name, layer.where, layer.index, now, cycles))
            before = now if layer.where == NPU else now + cycles
        now += cycles
    return tuple(events)


def trace_events(layers: Sequence[Layer], core_clock_hz: float, cpu_clock_hz: float | None = None) -> dict[str, Any]:
    """The timeline in Chrome's trace format, which Perfetto opens too: ``json.dumps`` of it is a file.

    A thread for each lane; times in microseconds; the layer's figures as arguments of its event.

    Args:
        layers: of ``figures.layers``.
        core_clock_hz: of the NPU, as ``EthosUCompileSpec.memory_system`` says it.
        cpu_clock_hz: of the Cortex-M; None takes the NPU's.

    Raises:
        EthorchError: a clock is not positive, or as of ``timeline``.
    """
    if not core_clock_hz > 0:
        raise EthorchError(f"core_clock_hz is {core_clock_hz}; a clock is positive.")
    by_index = {layer.index: layer for layer in layers}
    threads = {lane: number for number, lane in enumerate(LANES, 1)}
    scale = _MICROSECONDS / core_clock_hz
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "ethorch, estimated"}},
        *({"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": lane}} for lane, number in threads.items()),
    ]
    for event in timeline(layers, (cpu_clock_hz or core_clock_hz) / core_clock_hz):
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

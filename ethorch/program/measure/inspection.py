"""An ExecuTorch Inspector for a profiled run, with estimated cycles added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ethorch.figures import Layer
from ethorch.figures.layer import CPU
from ethorch.npu import Sources

_NATIVE_CALL = "native_call_"  # prefix of kernel names in ExecuTorch's events


@dataclass(frozen=True)
class Inspection:
    """The events recorded while a program ran.

    Attributes:
        inspector: ``executorch.devtools.Inspector``, with simulation times on the host.
        cycles: Vela's estimate of the cycles of each NPU operation, by event name.
        cpu_cycles: See ``cpu_cycles_of``.
        core_clock_hz, cpu_clock_hz: Clock frequencies in Hz, or 0 if unknown.
    """

    inspector: Any
    cycles: Mapping[str, int]
    cpu_cycles: Mapping[str, Sequence[int | None]]
    core_clock_hz: float
    cpu_clock_hz: float

    def to_dataframe(self, include_units: bool = True) -> Any:
        """Return the Inspector's table as a pandas DataFrame, with two columns added.

        ``estimated_cycles`` is Vela's estimate for NPU operations, an estimate with ``ethorch.figures.RATES`` for CPU kernels, and
        None for all other events. ``estimated_us`` (``estimated_us (us)`` if units are included) is the duration of these cycles.
        """
        table = self.inspector.to_dataframe(include_units=include_units)
        estimates = list(self._estimate_events(table["event_name"]))
        table["estimated_cycles"] = [count for count, _ in estimates]
        name = "estimated_us (us)" if include_units else "estimated_us"
        table[name] = [None if count is None or not clock else 1e6 * count / clock for count, clock in estimates]
        return table

    def _estimate_events(self, names: Sequence[str]) -> Iterator[tuple[int | None, float]]:
        calls: dict[str, int] = defaultdict(int)
        for name in names:
            kernel = base_name(name.removeprefix(_NATIVE_CALL))
            if name in self.cycles:
                yield self.cycles[name], self.core_clock_hz
            elif name.startswith(_NATIVE_CALL) and kernel in self.cpu_cycles:
                cycles_of_calls = self.cpu_cycles[kernel]
                yield cycles_of_calls[calls[kernel] % len(cycles_of_calls)], self.cpu_clock_hz
                calls[kernel] += 1
            else:
                yield None, 0.0

    def __str__(self) -> str:
        table = self.to_dataframe()
        columns = [name for name in table.columns if name.startswith(("event_name", "avg", "estimated"))]
        return str(table[columns].to_string(index=False))


def cycles_of(sources: Mapping[int, Sources] | None) -> dict[str, int]:
    """Return the estimated cycles of each NPU operation, by event name."""
    return {str(source): source.op_cycles for table in (sources or {}).values() for source in table.all()}


def cpu_cycles_of(layers: Sequence[Layer]) -> dict[str, list[int | None]]:
    """Map the base name of each CPU kernel to the estimated cycles of its calls, in execution order."""
    cycles: dict[str, list[int | None]] = defaultdict(list)
    for layer in layers:
        if layer.where == CPU:
            cycles[base_name(layer.operator)].append(layer.cycles)
    return dict(cycles)


def base_name(kernel: str) -> str:
    """Return a kernel name without its namespace, e.g. ``quantize_per_tensor.out``."""
    return kernel.rpartition("::")[2]

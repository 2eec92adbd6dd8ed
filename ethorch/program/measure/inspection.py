"""ExecuTorch's Inspector of a run, with what each operator takes on the NPU: the simulator's seconds are those of this computer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ethorch.figures import Layer
from ethorch.figures.layer import CPU
from ethorch.npu import Sources

_NATIVE_CALL = "native_call_"  # what ExecuTorch's runtime writes before a kernel's name


@dataclass(frozen=True)
class Inspection:
    """What a program's runs recorded.

    Attributes:
        inspector: ``executorch.devtools.Inspector``; its times are this computer's.
        cycles: name of an event of the NPU -> cycles that Vela estimates for the operation.
        cpu_cycles: base name of a CPU kernel -> cycles estimated for each of its calls, in order.
        core_clock_hz: of the NPU; 0 where unknown.
    """

    inspector: Any
    cycles: Mapping[str, int]
    cpu_cycles: Mapping[str, Sequence[int | None]]
    core_clock_hz: float

    def to_dataframe(self, include_units: bool = True) -> Any:
        """The Inspector's table as a pandas DataFrame, a row for each event, with two more columns.

        ``estimated_cycles``: of the NPU by Vela, of CPU kernels by the rates of ``ethorch.figures``; none of others.
        ``estimated_us`` (``(us)`` with units): the same at the clock of the system configuration.
        """
        table = self.inspector.to_dataframe(include_units=include_units)
        cycles = list(self._of_events(table["event_name"]))
        table["estimated_cycles"] = cycles
        clock = self.core_clock_hz
        name = "estimated_us (us)" if include_units else "estimated_us"
        table[name] = [None if count is None or not clock else 1e6 * count / clock for count in cycles]
        return table

    def _of_events(self, names: Sequence[str]) -> Iterator[int | None]:
        calls: dict[str, int] = defaultdict(int)
        for name in names:
            kernel = base_name(name.removeprefix(_NATIVE_CALL))
            if name in self.cycles:
                yield self.cycles[name]
            elif name.startswith(_NATIVE_CALL) and kernel in self.cpu_cycles:
                of_kernel = self.cpu_cycles[kernel]
                yield of_kernel[calls[kernel] % len(of_kernel)]
                calls[kernel] += 1
            else:
                yield None

    def __str__(self) -> str:
        table = self.to_dataframe()
        shown = [name for name in table.columns if name.startswith(("event_name", "avg", "estimated"))]
        return str(table[shown].to_string(index=False))


def cycles_of(sources: Mapping[int, Sources] | None) -> dict[str, int]:
    """Name of an NPU event -> cycles of the operation it names."""
    return {str(source): source.op_cycles for table in (sources or {}).values() for source in table.all()}


def cpu_cycles_of(layers: Sequence[Layer]) -> dict[str, list[int | None]]:
    """Base name of a CPU kernel -> the estimate for each of its calls, in order."""
    found: dict[str, list[int | None]] = defaultdict(list)
    for layer in layers:
        if layer.where == CPU:
            found[base_name(layer.operator)].append(layer.cycles)
    return dict(found)


def base_name(kernel: str) -> str:
    """``quantize_per_tensor.out`` of ``quantized_decomposed::quantize_per_tensor.out``."""
    return kernel.rpartition("::")[2]

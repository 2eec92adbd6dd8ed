from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ethorch.figures.cpu_rates import RATES
from ethorch.figures.layer import CPU, NPU, TRANSPOSES, Layer
from ethorch.formats.payload import DelegatePayload
from ethorch.targets.cpu_operators import base_name

#: CPU cycles of one delegate call.
CALL_CYCLES = 1000
CALL_SOURCE = (
    "counted: generated firmware executes 948 (U55-128) or 1055 (U85-256) instructions per run with one input and one output on "
    "the virtual board, excluding operating system, ExecuTorch's runtime and cache maintenance"
)

NPU_OPERATORS, END_TRANSPOSES = "NPU operators", "NPU boundary transposes"
CONVERSIONS, CPU_OPERATORS = "quantize and dequantize", "CPU operators"
COPIES, CALLS = "copies", "delegate calls"
_CONVERTS = ("quantize_per_", "dequantize_per_")


@dataclass(frozen=True)
class Part:
    """A part of the inference time.

    Attributes:
        name: Label, e.g. ``NPU operators``.
        where: ``NPU`` or ``CPU``.
        cycles: Clock cycles of the NPU or the CPU, or None if unknown.
        milliseconds: Time, or None if the cycles or the clock are unknown.
        source: Origin of the figure: ``Vela``, names of rates in ``figures.RATES``, or a text that starts with ``counted`` or
            ``assumed``.
    """

    name: str
    where: str
    cycles: int | None
    milliseconds: float | None
    source: str


@dataclass(frozen=True)
class Estimate:
    """The estimated time of one inference. The parts run sequentially.

    Attributes:
        parts: ``NPU operators``, and all other parts whose cycles are not 0.
        npu_hz, cpu_hz: Clock frequencies, or 0 if unknown.
        macs: Multiply-accumulates of the model's graph, or of the layers of a loaded program. Set by ``Program.estimate``.
    """

    parts: tuple[Part, ...]
    npu_hz: float = 0.0
    cpu_hz: float = 0.0
    macs: int = 0

    def cycles(self, *names: str) -> int | None:
        """Return the sum of NPU and CPU cycles of the named parts (default: all parts), or None if a part's cycles are unknown."""
        counts = [part.cycles for part in self.parts if not names or part.name in names]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def npu_cycles(self) -> int | None:
        """The cycles of all NPU layers, or None if unknown."""
        return self.cycles(NPU_OPERATORS, END_TRANSPOSES)

    @property
    def cpu_cycles(self) -> int | None:
        """The cycles of all CPU layers, or None if unknown."""
        return self.cycles(CONVERSIONS, CPU_OPERATORS)

    @property
    def overhead_cycles(self) -> int | None:
        """The CPU cycles of copies and delegate calls, which are not part of any layer."""
        return self.cycles(COPIES, CALLS)

    @property
    def milliseconds(self) -> float | None:
        """The time of all parts, or None if the time of any part is unknown."""
        times = [part.milliseconds for part in self.parts]
        return None if None in times or not times else sum(count for count in times if count is not None)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the parts as JSON-compatible data."""
        return [asdict(part) for part in self.parts]


def estimate(layers: Sequence[Layer], payloads: Iterable[DelegatePayload], npu_hz: float, cpu_hz: float) -> Estimate:
    """Estimate the inference time of a program.

    Args:
        payloads: Payloads of the delegates. The estimate includes copies of all payload inputs and outputs, as made by ExecuTorch's
            EthosUBackend. Generated firmware avoids most of these copies.
        npu_hz, cpu_hz: Clock frequencies, or 0 if unknown.
    """
    ends = set(_find_end_transposes(layers))
    on_npu = [layer for layer in layers if layer.where == NPU]
    on_cpu = [layer for layer in layers if layer.where == CPU]
    converts = [layer for layer in on_cpu if base_name(layer.operator).startswith(_CONVERTS)]
    others = [layer for layer in on_cpu if not base_name(layer.operator).startswith(_CONVERTS)]
    payloads = list(payloads)
    copied_bytes = sum(tensor.nbytes for payload in payloads for tensor in (*payload.inputs, *payload.outputs))
    copy_rate = RATES["copy"]
    rows: tuple[tuple[str, str, int | None, str], ...] = (
        (NPU_OPERATORS, NPU, _sum_cycles(layer for layer in on_npu if layer.index not in ends), "Vela"),
        (END_TRANSPOSES, NPU, _sum_cycles(layer for layer in on_npu if layer.index in ends), "Vela"),
        (CONVERSIONS, CPU, _sum_cycles(converts), _describe_rates(converts)),
        (CPU_OPERATORS, CPU, _sum_cycles(others), _describe_rates(others)),
        (COPIES, CPU, round(copy_rate.cycles * copied_bytes), copy_rate.source),
        (CALLS, CPU, CALL_CYCLES * len(payloads), CALL_SOURCE),
    )
    clocks = {NPU: npu_hz, CPU: cpu_hz}
    parts = []
    for name, where, cycles, source in rows:
        if cycles != 0 or name == NPU_OPERATORS:
            clock = clocks[where]
            parts.append(Part(name, where, cycles, None if cycles is None or not clock else 1e3 * cycles / clock, source))
    return Estimate(tuple(parts), npu_hz, cpu_hz)


def _find_end_transposes(layers: Sequence[Layer]) -> Iterator[int]:
    """Iterate over the indices of transposes that precede all other layers of a delegate or follow all of them."""
    for delegate in {layer.delegate for layer in layers if layer.where == NPU}:
        delegate_layers = [layer for layer in layers if layer.where == NPU and layer.delegate == delegate and layer.cycles]
        for side in (delegate_layers, delegate_layers[::-1]):
            for layer in side:
                if layer.bound != TRANSPOSES:
                    break
                yield layer.index


def _sum_cycles(layers: Iterable[Layer]) -> int | None:
    cycles = [layer.cycles for layer in layers]
    return None if None in cycles else sum(count for count in cycles if count is not None)


def _describe_rates(layers: Iterable[Layer]) -> str:
    names = sorted({layer.estimate for layer in layers})
    return ", ".join(f"{name} ({RATES[name].source.partition(':')[0]})" for name in names)

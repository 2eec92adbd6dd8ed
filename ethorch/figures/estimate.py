"""What one inference takes, by part: the NPU's operators and transposes, the CPU's operators, copies at delegates, and calls.

This is the one place where the parts of an estimate are added up. ``Program.estimate``, the JSON, reports and ``explore`` take its
sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ethorch.figures.cpu_rates import RATES, base_name
from ethorch.figures.layer import CPU, NPU, TRANSPOSES, Layer
from ethorch.formats.payload import DelegatePayload

#: Instructions of the CPU around one run of the NPU.
CALL_CYCLES = 1000
CALL_SOURCE = (
    "counted: 948 (U55-128) and 1055 (U85-256) instructions of a run by generated firmware on the virtual board, one input, one "
    "output; without an operating system, ExecuTorch's runtime and cache maintenance"
)

NPU_OPERATORS, END_TRANSPOSES = "NPU operators", "NPU transposes at the ends"
CONVERSIONS, CPU_OPERATORS = "quantize and dequantize", "CPU operators"
COPIES, CALLS = "copies to and from the NPU", "calls of the NPU"
_CONVERTS = ("quantize_per_", "dequantize_per_")


@dataclass(frozen=True)
class Part:
    """A part of the time.

    Attributes:
        name: what it is.
        where: ``NPU`` or ``CPU``, whose clock its cycles are of.
        cycles: None where they are unknown.
        milliseconds: at that clock; None without cycles or clock.
        source: where the figure comes from: ``Vela``, the names of rates of ``figures.RATES``, ``counted`` or ``assumed``.
    """

    name: str
    where: str
    cycles: int | None
    milliseconds: float | None
    source: str


@dataclass(frozen=True)
class Estimate:
    """The parts of one inference, which are done one after the other.

    Attributes:
        parts: those that the program has.
        npu_hz, cpu_hz: Clocks of the NPU's system configuration and of the CPU; 0 if they are unknown.
        macs: Multiply-accumulates, counted on the model's graph, the same for every NPU; of a loaded program, its layers'.
    """

    parts: tuple[Part, ...]
    npu_hz: float = 0.0
    cpu_hz: float = 0.0
    macs: int = 0

    def cycles(self, *names: str) -> int | None:
        """Of the parts with these names, by default of all; None where one is unknown. Clocks are not told apart."""
        found = [part.cycles for part in self.parts if not names or part.name in names]
        return None if None in found else sum(count for count in found if count is not None)

    @property
    def npu_cycles(self) -> int | None:
        """Of all layers on the NPU."""
        return self.cycles(NPU_OPERATORS, END_TRANSPOSES)

    @property
    def cpu_cycles(self) -> int | None:
        """Of all layers on the CPU."""
        return self.cycles(CONVERSIONS, CPU_OPERATORS)

    @property
    def overhead_cycles(self) -> int | None:
        """Of the CPU, for what is no layer: copies and calls."""
        return self.cycles(COPIES, CALLS)

    @property
    def milliseconds(self) -> float | None:
        """The sum of all parts; None where one is unknown."""
        found = [part.milliseconds for part in self.parts]
        return None if None in found or not found else sum(count for count in found if count is not None)

    def to_json(self) -> list[dict[str, Any]]:
        """A row for each part; keys are the attributes' names."""
        return [asdict(part) for part in self.parts]


def estimate(layers: Sequence[Layer], payloads: Iterable[DelegatePayload], npu_hz: float, cpu_hz: float) -> Estimate:
    """The parts of a program's time.

    Args:
        layers: of ``figures.layers``.
        payloads: of its delegates. What each takes and gives is copied, as ExecuTorch's delegate does it; firmware of
            ``ethorch.firmware`` does without most of these copies.
        npu_hz, cpu_hz: clocks; 0 where they are unknown.
    """
    ends = set(_end_transposes(layers))
    on_npu = [layer for layer in layers if layer.where == NPU]
    on_cpu = [layer for layer in layers if layer.where == CPU]
    converts = [layer for layer in on_cpu if base_name(layer.operator).startswith(_CONVERTS)]
    others = [layer for layer in on_cpu if not base_name(layer.operator).startswith(_CONVERTS)]
    payloads = list(payloads)
    copied = sum(tensor.nbytes for payload in payloads for tensor in (*payload.inputs, *payload.outputs))
    copy = RATES["copy"]
    rows: tuple[tuple[str, str, int | None, str], ...] = (
        (NPU_OPERATORS, NPU, _sum(layer for layer in on_npu if layer.index not in ends), "Vela"),
        (END_TRANSPOSES, NPU, _sum(layer for layer in on_npu if layer.index in ends), "Vela"),
        (CONVERSIONS, CPU, _sum(converts), _rates(converts)),
        (CPU_OPERATORS, CPU, _sum(others), _rates(others)),
        (COPIES, CPU, round(copy.cycles * copied), copy.source),
        (CALLS, CPU, CALL_CYCLES * len(payloads), CALL_SOURCE),
    )
    clocks = {NPU: npu_hz, CPU: cpu_hz}
    found = []
    for name, where, cycles, source in rows:
        if cycles != 0 or name == NPU_OPERATORS:
            clock = clocks[where]
            found.append(Part(name, where, cycles, None if cycles is None or not clock else 1e3 * cycles / clock, source))
    return Estimate(tuple(found), npu_hz, cpu_hz)


def _end_transposes(layers: Sequence[Layer]) -> Iterator[int]:
    """Layers of the NPU that only transpose, before a delegate's first that computes or behind its last."""
    for delegate in {layer.delegate for layer in layers if layer.where == NPU}:
        own = [layer for layer in layers if layer.where == NPU and layer.delegate == delegate and layer.cycles]
        for side in (own, own[::-1]):
            for layer in side:
                if layer.bound != TRANSPOSES:
                    break
                yield layer.index


def _sum(layers: Iterable[Layer]) -> int | None:
    cycles = [layer.cycles for layer in layers]
    return None if None in cycles else sum(count for count in cycles if count is not None)


def _rates(layers: Iterable[Layer]) -> str:
    """The rates by which these were estimated, with the first word of each one's source: ``quantize (counted)``."""
    names = sorted({layer.estimate for layer in layers})
    return ", ".join(f"{name} ({RATES[name].source.partition(':')[0]})" for name in names)

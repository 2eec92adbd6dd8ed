"""Work counters for commands and operators, and PMU events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ethorch.npu.memory import Span
from ethorch.npu.prepared import Step
from ethorch.npu.registers import U55, U65, U85, Npu
from ethorch.npu.source_map import Source, Sources
from ethorch.npu.stream import Operation


@dataclass(kw_only=True)
class Work:
    """The NPU's work, summed over runs. ``read_bytes`` and ``written_bytes`` are keyed by region. Region -1 is internal memory.

    Attributes:
        blocks: Number of OFM blocks of size OFM_BLK_*.
        weight_bytes: Bytes of encoded weights. ``read_bytes`` includes weights and scales.
        seconds: Simulation time.
    """

    runs: int = 0
    macs: int = 0
    read_bytes: dict[int, int] = field(default_factory=dict)
    written_bytes: dict[int, int] = field(default_factory=dict)
    weight_bytes: int = 0
    dma_bytes: int = 0
    blocks: int = 0
    seconds: float = 0.0


@dataclass
class Counter(Work):
    """The work of one operation."""

    op: Operation


@dataclass
class OperatorCounter(Work):
    """The work of all commands of one operator.

    Attributes:
        source: The operator, or None if unknown. ``source.op_cycles`` is Vela's estimate for one run.
    """

    source: Source | None
    commands: int = 0

    def add(self, counter: Counter) -> None:
        self.commands += 1
        self.runs = max(self.runs, counter.runs)
        for name in ("macs", "weight_bytes", "dma_bytes", "blocks", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(counter, name))
        _add(self.read_bytes, counter.read_bytes)
        _add(self.written_bytes, counter.written_bytes)


def _add(total: dict[int, int], part: Mapping[int, int]) -> None:
    for region, size in part.items():
        total[region] = total.get(region, 0) + size


def by_operator(counters: Iterable[Counter], sources: Sources | None) -> list[OperatorCounter]:
    """Sum the counters of each operator, in stream order. Commands whose operator is unknown share a counter."""
    groups: dict[int | None, OperatorCounter] = {}
    for counter in sorted(counters, key=lambda c: c.op.index):
        source = sources.at(counter.op.offset) if sources else None
        groups.setdefault(None if source is None else id(source), OperatorCounter(source)).add(counter)
    return list(groups.values())


# PMU event numbers (npu-reference 9.1).
CYCLE, NPU_IDLE, NPU_ACTIVE = 17, 32, 35
MAC_ACTIVE = 48
AXI0_READ_BEATS, AXI0_WRITE_BEATS = 130, 135
AXI1_READ_BEATS, AXI1_WRITE_BEATS = 386, 391

BEAT_BYTES = {U55: 8, U65: 16, U85: 16}  # width of an AXI port
# AXI port of each region with the default REGIONCFG of Arm's driver (npu-reference 9.2). Other regions use AXI0. On U65,
# the arena is also in external memory.
PORTS = {U55: {0: 1}, U65: {0: 1, 1: 1}, U85: {0: 1}}


def events(
    counters: Iterable[Counter], npu: Npu, ports: Mapping[int, int] | None = None, cycles: int | None = None
) -> dict[int, int]:
    """Return the PMU event counts that can be derived from work counters, keyed by event number.

    The MAC and AXI counts are lower bounds. They assume that each byte moves once, in full beats, and that all MAC units are busy.

    Args:
        ports: AXI port of each region. Default: the configuration of Arm's driver.
        cycles: Cycles of all runs, e.g. Vela's estimate, reported as CYCLE and NPU_ACTIVE. If None, these events are omitted.
    """
    ports = PORTS[npu.family] if ports is None else ports
    beat = BEAT_BYTES[npu.family]
    result = dict.fromkeys((MAC_ACTIVE, AXI0_READ_BEATS, AXI0_WRITE_BEATS, AXI1_READ_BEATS, AXI1_WRITE_BEATS), 0)
    for counter in counters:
        result[MAC_ACTIVE] += -(-counter.macs // npu.macs)
        for bytes_, events_ in (
            (counter.read_bytes, (AXI0_READ_BEATS, AXI1_READ_BEATS)),
            (counter.written_bytes, (AXI0_WRITE_BEATS, AXI1_WRITE_BEATS)),
        ):
            for region, size in bytes_.items():
                if region >= 0:
                    result[events_[ports.get(region, 0)]] += -(-size // beat)
    if cycles is not None:
        result |= {CYCLE: cycles, NPU_ACTIVE: cycles, NPU_IDLE: 0}
    return result


@dataclass
class Tally:
    """The execution count of an operation, and its seconds in all runs and in the last run."""

    runs: int = 0
    seconds: float = 0.0
    last_run: int = 0
    last_seconds: float = 0.0

    def add(self, run: int, seconds: float) -> None:
        self.runs += 1
        self.seconds += seconds
        self.last_seconds = self.last_seconds + seconds if self.last_run == run else seconds
        self.last_run = run


def counter_of(step: Step, tally: Tally) -> Counter:
    prepared, runs = step.prepared, tally.runs
    counter = Counter(
        step.op,
        runs=runs,
        macs=runs * prepared.macs,
        weight_bytes=runs * prepared.weight_bytes,
        dma_bytes=runs * prepared.dma_bytes,
        blocks=runs * step.blocks,
        seconds=tally.seconds,
    )
    for where, accesses in ((counter.read_bytes, prepared.reads), (counter.written_bytes, prepared.writes)):
        for access in accesses:
            if isinstance(access, Span) or access.in_memory:
                where[access.region] = where.get(access.region, 0) + runs * access.size_bytes
    if prepared.scattered is not None:
        source, target = prepared.scattered
        counter.read_bytes[source] = counter.written_bytes[target] = counter.dma_bytes
    return counter


def timeline(tallies: Iterable[tuple[Step, Tally]], sources: Sources | None) -> list[tuple[str, float]]:
    """Return (name, seconds) pairs for the last run, excluding waits.

    Each pair is for one operator, or for a command whose operator is unknown.
    """
    result: dict[object, tuple[str, float]] = {}
    for step, tally in tallies:
        if not (step.prepared.computes or step.prepared.dma_bytes):
            continue
        source = sources.at(step.op.offset) if sources else None
        key: object = step.op.index if source is None else id(source)
        name = f"{step.op.offset:06x} {step.op.title}" if source is None else str(source)
        result[key] = name, result.get(key, (name, 0.0))[1] + tally.last_seconds
    return list(result.values())

"""Machine: memory regions, and the loop that runs a program's operations over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ethorch.errors import MachineFault
from ethorch.npu import registers
from ethorch.npu.blas import one_thread
from ethorch.npu.counters import Counter, OperatorCounter, by_operator, events
from ethorch.npu.feature_map import STORAGE_CHAINED, FeatureMap, View, read_rows, write_rows
from ethorch.npu.hazards import check_overlap
from ethorch.npu.kernel import Span
from ethorch.npu.ops.dma import INTERNAL
from ethorch.npu.program import Program, Step
from ethorch.npu.sources import Source, Sources
from ethorch.npu.stream import Operation

SCRATCH, SCRATCH_FAST = 1, 2  # regions (1.4)
MOST_REGION_BYTES = 1 << 28  # allocated here; sizes come from files, and boards have far less. A caller may bring more.
WORK_PER_BYTE = 1 << 12  # default budget: work units per byte of memory; the largest networks need a few hundred
LEAST_WORK = 1 << 33
ELEMENT_WORK = 16  # work units per element an operation touches; a MAC is one unit
COMMAND_WORK = 1 << 12  # per operation; where there are branches, per command
PREPARE_WORK = 1 << 18  # where there are branches, per operation under registers it has not run under: those are kept
ARRAY_PER_BYTE = 16  # largest array of an operation, in elements per byte of memory; padding can make it > 1
LEAST_ARRAY, MOST_ARRAY = 1 << 22, 1 << 27


@dataclass
class _Tally:
    """What changes from run to run: how often a step ran, for how long; and the work units it takes."""

    work: int
    runs: int = 0
    seconds: float = 0.0
    last_run: int = 0
    last_seconds: float = 0.0


def _counter(step: Step, tally: _Tally) -> Counter:
    kernel, runs = step.kernel, tally.runs
    counter = Counter(
        step.op,
        runs=runs,
        macs=runs * kernel.macs,
        weight_bytes=runs * kernel.weight_bytes,
        dma_bytes=runs * kernel.dma_bytes,
        blocks=runs * step.blocks,
        seconds=tally.seconds,
    )
    for where, accesses in ((counter.read_bytes, kernel.reads), (counter.written_bytes, kernel.writes)):
        for access in accesses:
            if isinstance(access, Span) or access.in_memory:
                where[access.region] = where.get(access.region, 0) + runs * access.size_bytes
    if kernel.scattered is not None:
        source, target = kernel.scattered
        counter.read_bytes[source] = counter.written_bytes[target] = counter.dma_bytes
    return counter


@dataclass(frozen=True)
class Trace:
    """What ``trace`` is called with after an operation: inputs as they were before it, the OFM as it is now."""

    op: Operation
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    source: Source | None = None


class Machine:
    """Runs a Program over memory. Region 0 is the program's constants, region 1 scratch, region 2 fast scratch.

    Args:
        scratch_bytes, scratch_fast_bytes: sizes of regions 1 and 2 to allocate; 0 allocates none (pitfall 17).
        regions: memory of the caller, uint8, by region number; used in place, not copied.
        trace: called with a Trace after every operation; slow, since inputs are copied.
        checks: ``uninitialized`` stops at reads of scratch bytes that nothing has written (see ``mark_written``);
            ``overlap`` at operations whose OFM lies on their IFM so that hardware, which works in blocks, may read
            what it has just written.
        budget: work units a run may take before it is stopped, so that no stream runs for ever.
        sources: which operator of the model a command works for; named by faults, traces and ``operators``.

    One machine serves one thread at a time; several may share a Program.
    """

    def __init__(
        self,
        program: Program,
        scratch_bytes: int = 0,
        scratch_fast_bytes: int = 0,
        trace: Callable[[Trace], None] | None = None,
        regions: Mapping[int, np.ndarray] | None = None,
        checks: tuple[str, ...] = (),
        budget: int | None = None,
        sources: Sources | None = None,
    ):
        self.program = program
        self.sources = sources
        self.regions: dict[int, np.ndarray] = {0: program.constants}
        for number, size in ((SCRATCH, scratch_bytes), (SCRATCH_FAST, scratch_fast_bytes)):
            if size > MOST_REGION_BYTES:
                raise MachineFault(f"region {number} of {size} bytes: more than {MOST_REGION_BYTES}; give it as regions=")
            if size:
                self.regions[number] = np.zeros(size, np.uint8)
        for number, array in (regions or {}).items():
            if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
                raise MachineFault(f"region {number} has to be a contiguous uint8 array of one dimension")
            self.regions[number] = array
        self.regions[INTERNAL] = np.zeros(program.config.internal_bytes, np.uint8)
        self.trace = trace
        total = sum(r.size for r in self.regions.values())
        self.budget = max(LEAST_WORK, WORK_PER_BYTE * total) if budget is None else budget
        self.largest_array = min(max(LEAST_ARRAY, ARRAY_PER_BYTE * total), MOST_ARRAY)
        self.chain: dict[int, np.ndarray] = {}
        self.accumulator: np.ndarray | None = None
        unknown = set(checks) - {"uninitialized", "overlap"}
        if unknown:
            raise MachineFault(f"unknown checks {sorted(unknown)}; known: overlap, uninitialized")
        self._check_overlap = "overlap" in checks
        self._shadow: dict[int, np.ndarray] | None = None
        if "uninitialized" in checks:
            self._shadow = {n: np.full(r.size, n == 0, np.uint8) for n, r in self.regions.items()}
        self._views: dict[FeatureMap, list[View]] = {}
        self._tallies: dict[Step, _Tally] = {}
        self._overlaps: dict[tuple[FeatureMap, FeatureMap], bool] = {}
        self._last: FeatureMap | None = None
        self._run = 0

    def region(self, number: int) -> np.ndarray:
        """A region's bytes; MachineFault when the machine has no such region."""
        try:
            return self.regions[number]
        except KeyError:
            have = ", ".join(str(n) for n in sorted(self.regions) if n >= 0)
            raise MachineFault(f"region {number} does not exist; the machine has {have}") from None

    def write(self, fm: FeatureMap, values: np.ndarray) -> None:
        """Store a whole box, or keep it in a chain buffer."""
        self._last = fm
        if fm.storage == STORAGE_CHAINED:
            self.chain[fm.region] = values
        else:
            write_rows(self.views(fm), 0, values)

    def write_rows(self, fm: FeatureMap, first: int, values: np.ndarray) -> None:
        """Store rows first.. of a box that lies in memory."""
        self._last = fm
        write_rows(self.views(fm), first, values)

    def read(self, fm: FeatureMap) -> np.ndarray:
        """A whole box [H, W, C] in its stored type: a view where memory has that shape, else a copy."""
        if fm.storage == STORAGE_CHAINED:
            return self._chained(fm)
        views = self.views(fm)
        if len(views) == 1 and views[0].array.ndim == 3:
            return views[0].array
        out = np.empty(fm.shape, fm.dtype)
        read_rows(views, 0, out)
        return out

    def read_rows(self, fm: FeatureMap, first: int, out: np.ndarray) -> None:
        """Fill ``out`` [n, W, C] with rows first..first+n of a box."""
        if fm.storage == STORAGE_CHAINED:
            out[...] = self._chained(fm)[first : first + len(out)]
        else:
            read_rows(self.views(fm), first, out)

    def _chained(self, fm: FeatureMap) -> np.ndarray:
        values = self.chain.get(fm.region)
        if values is None or values.shape != fm.shape:
            have = "nothing" if values is None else f"a box of {values.shape}"
            raise MachineFault(f"{fm.name} wants a box of {fm.shape} from chain buffer {fm.region}, which holds {have}")
        return values.astype(fm.dtype, copy=False)

    def views(self, fm: FeatureMap) -> list[View]:
        views = self._views.get(fm)
        if views is None:
            if not fm.in_memory:
                raise MachineFault(f"{fm.name} has no place in memory, but the operation wants to access it")
            views = self._views[fm] = fm.views(self.region(fm.region))
        return views

    def overlap(self, a: FeatureMap, b: FeatureMap) -> bool:
        """Whether two maps might share bytes, judged by the ranges their tiles span."""
        if a.region != b.region or not a.in_memory or not b.in_memory:
            return False
        key = a, b
        if key not in self._overlaps:
            self._overlaps[key] = any(
                np.may_share_memory(x, y)
                for va in self.views(a) for x in va.arrays
                for vb in self.views(b) for y in vb.arrays
            )  # fmt: skip
        return self._overlaps[key]

    def span(self, span: Span) -> np.ndarray:
        """A run of bytes, to be read."""
        memory = self.region(span.region)
        if span.base < 0 or span.base + span.size_bytes > memory.size:
            raise MachineFault(
                f"{span.name} covers bytes {span.base:#x}..{span.base + span.size_bytes:#x} of region {span.region}, "
                f"which has {memory.size:#x} bytes"
            )
        return memory[span.base : span.base + span.size_bytes]

    def writable(self, span: Span) -> np.ndarray:
        """A run of bytes, about to be written."""
        if span.region == 0:
            raise MachineFault(f"{span.name} writes to region 0, which holds constants")
        memory = self.span(span)
        self.mark_written(span.region, span.base, span.size_bytes)
        return memory

    def bytes(self, span: Span) -> bytes:
        return self.span(span).tobytes()

    def is_constant(self, region: int) -> bool:
        """Whether a region's bytes are the program's constants, so that what was decoded from them stays right."""
        return self.regions.get(region) is self.program.constants

    def lut(self, address: int, size_bytes: int) -> np.ndarray:
        """A table in internal memory."""
        return self.span(Span("ACTIVATION table", INTERNAL, address, size_bytes))

    def kept_accumulator(self, shape: tuple[int, int, int]) -> np.ndarray:
        if self.accumulator is None or self.accumulator.shape != shape:
            have = "none" if self.accumulator is None else str(self.accumulator.shape)
            raise MachineFault(f"ACC_FORMAT.input KEEP wants accumulators of {shape}, the machine holds {have}")
        return self.accumulator

    # Running.

    def run(self) -> None:
        """Execute the whole stream. MachineFault names the command, its registers, its operator and what is wrong."""
        self._left = self.budget
        self._run += 1
        try:
            with one_thread():
                if self.program.has_branches:
                    self._run_branches()
                else:
                    for step in self.program.steps():
                        self._execute(step)
        except MachineFault as fault:
            op: Operation | None = getattr(fault, "operation", None)
            source = self._source(op) if op else None
            if source is None:
                raise
            named = MachineFault(f"{fault} It works for {source}.")
            named.operation, named.source = op, source  # type: ignore[attr-defined]
            raise named from fault

    def _source(self, op: Operation) -> Source | None:
        return self.sources.at(op.offset) if self.sources else None

    def _run_branches(self) -> None:
        """Follow branches: registers are what the commands on the path wrote (8.10)."""
        program = self.program
        state = dict(registers.reset_state(program.config.family))
        index = 0
        while index < len(program.commands):
            command = program.commands[index]
            index += 1
            self._spend(COMMAND_WORK)
            if not command.is_operation:
                state.update(command.values)
            elif command.row.name == "NPU_OP_STOP":
                return
            elif command.row.name == "NPU_OP_BRANCH":
                if not command.values["NPU_OP_BRANCH.cond"] or self._result_flag():
                    target = command.values["NPU_OP_BRANCH.target"]
                    if target not in program.at_offset:
                        raise MachineFault(f"command {command.index} branches to byte {target:#x}, inside a command")
                    index = program.at_offset[target]
            else:
                step = program.step(command, state)
                if step not in self._tallies:
                    self._spend(PREPARE_WORK)
                self._execute(step)
        raise MachineFault("the stream ends without NPU_OP_STOP")

    def _result_flag(self) -> bool:
        """Set if the last operation's OFM, one element in every stream Vela makes, is not zero."""
        if self._last is None or self._last.elements != 1:
            raise MachineFault("a conditional branch wants the operation before it to have a one-element OFM")
        return bool(self.read(self._last).any())

    def _execute(self, step: Step) -> None:
        started = time.perf_counter()
        try:
            tally = self._tallies.get(step)
            if tally is None:
                tally = self._tallies[step] = _Tally(self._admit(step))
                if self._check_overlap:
                    check_overlap(self, step)
            self._spend(tally.work)
            if self.trace or self._shadow is not None:
                self._watched(step)
            else:
                step.kernel.run(self)
        except MachineFault as fault:
            raise step.op.locate(fault) from fault
        seconds = time.perf_counter() - started
        tally.runs += 1
        tally.seconds += seconds
        if tally.last_run != self._run:
            tally.last_run, tally.last_seconds = self._run, 0.0
        tally.last_seconds += seconds

    def _watched(self, step: Step) -> None:
        """Run with the optional checks and the trace."""
        inputs = self._copies(step.kernel.reads) if self.trace else {}
        if self._shadow is not None:
            self._check_written(step)
        step.kernel.run(self)
        if self._shadow is not None:
            self._mark_written(step)
        if self.trace:
            self.trace(Trace(step.op, inputs, self._copies(step.kernel.writes), self._source(step.op)))

    def _admit(self, step: Step) -> int:
        """Refuse arrays out of proportion to memory before anything is allocated; the work units of the operation."""
        kernel = step.kernel
        maps = [fm for fm in (*kernel.reads, *kernel.writes) if isinstance(fm, FeatureMap)]
        largest = max([kernel.elements, *(fm.elements for fm in maps)])
        if largest > self.largest_array:
            raise MachineFault(f"the operation works on {largest} elements at once; its memory justifies {self.largest_array}")
        for fm in kernel.writes:
            if isinstance(fm, FeatureMap) and fm.in_memory and not self.region(fm.region).flags.writeable:
                raise MachineFault(f"{fm.name} writes to region {fm.region}, which is read-only")
        touched = kernel.elements + sum(fm.elements for fm in maps) + kernel.dma_bytes
        return kernel.macs + ELEMENT_WORK * touched + (touched + COMMAND_WORK) * kernel.passes

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise MachineFault(f"the run takes more than its budget of {self.budget} work units")

    @property
    def counters(self) -> dict[int, Counter]:
        """What every operation executed so far did, by its command index."""
        return {step.op.index: _counter(step, tally) for step, tally in self._tallies.items()}

    @property
    def operators(self) -> list[OperatorCounter]:
        """The counters, added up for each operator of the model."""
        return by_operator(self.counters.values(), self.sources)

    def timeline(self) -> list[tuple[str, float]]:
        """(name, seconds) of what ran last: operators where ``sources`` are known, else commands."""
        result: dict[object, tuple[str, float]] = {}
        for step, tally in self._tallies.items():
            if tally.last_run != self._run or not (step.kernel.is_kernel or step.kernel.dma_bytes):
                continue
            source = self._source(step.op)
            key: object = step.op.index if source is None else id(source)
            name = f"{step.op.offset:06x} {step.op.title}" if source is None else str(source)
            result[key] = name, result.get(key, (name, 0.0))[1] + tally.last_seconds
        return list(result.values())

    def events(self, ports: Mapping[int, int] | None = None) -> dict[int, int]:
        """PMU events by number, as far as they can be derived: ``counters.events``; with ``sources``, cycles as well."""
        estimates = [o.runs * o.source.op_cycles for o in self.operators if o.source is not None]
        return events(self.counters.values(), self.program.config, ports, sum(estimates) if estimates else None)

    def _copies(self, accesses: tuple[FeatureMap | Span, ...]) -> dict[str, np.ndarray]:
        return {
            a.name: (self.read(a) if isinstance(a, FeatureMap) else self.span(a)).copy()
            for a in accesses
            if isinstance(a, Span) or a.in_memory or a.region in self.chain
        }

    # The optional check for bytes that nothing has written.

    def mark_written(self, region: int, start: int, size_bytes: int) -> None:
        """Tell the ``uninitialized`` check that the caller has written these bytes, e.g. an input."""
        if self._shadow is not None:
            self._shadow[region][start : start + size_bytes] = 1

    def _shadow_arrays(self, access: FeatureMap | Span) -> list[np.ndarray]:
        """The marks of an access's first bytes, one per element."""
        assert self._shadow is not None
        if isinstance(access, FeatureMap) and not access.in_memory:
            return []
        self.region(access.region)
        memory = self._shadow[access.region]
        if isinstance(access, Span):
            return [memory[access.base : access.base + access.size_bytes]]
        return [a for view in access.views(memory) for a in view.arrays]

    def _check_written(self, step: Step) -> None:
        for access in step.kernel.reads:
            if isinstance(access, Span) and not step.kernel.is_kernel:
                continue  # a DMA may move what nobody reads
            for marks in self._shadow_arrays(access):
                full = sum(1 << (8 * i) for i in range(marks.itemsize))
                if not np.all(marks == marks.dtype.type(full)):
                    raise MachineFault(f"{access.name} reads bytes of region {access.region} that nothing has written")

    def _mark_written(self, step: Step) -> None:
        for access in step.kernel.writes:
            for marks in self._shadow_arrays(access):
                marks[...] = sum(1 << (8 * i) for i in range(marks.itemsize))

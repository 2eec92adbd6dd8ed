from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ethorch.npu import registers
from ethorch.npu.arrays import Array, Bytes
from ethorch.npu.blas import one_thread
from ethorch.npu.counters import Counter, OperatorCounter, Tally, by_operator, counter_of, events, timeline
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.forms import Nothing
from ethorch.npu.hazards import Unwritten, check_overlap
from ethorch.npu.memory import SCRATCH, SCRATCH_FAST, Access, Memory, Span, allocate
from ethorch.npu.plan import Plan, Planned, plan_of
from ethorch.npu.prepared import COMMAND_WORK, Step
from ethorch.npu.program import Program
from ethorch.npu.source_map import Source, Sources
from ethorch.npu.stream import Operation
from ethorch.support.errors import MachineFault

# Default budget in work units (``prepared``) per byte of memory. Most networks need a few hundred, networks with large deep
# layers up to ten thousand. MOST_WORK corresponds to 32 MiB and about ten minutes.
WORK_PER_BYTE = 1 << 16
LEAST_WORK, MOST_WORK = 1 << 35, 1 << 41
PREPARE_WORK = 1 << 18  # to prepare an operation in a stream with branches; counted once for equal registers
ARRAY_PER_BYTE = 16  # limit for an operation's arrays, in elements per byte of memory; padding can require more than 1
LEAST_ARRAY, MOST_ARRAY = 1 << 22, 1 << 27

CHECKS = {"overlap", "uninitialized"}


@dataclass(frozen=True)
class Trace:
    """The argument of a ``trace`` function: an operation, its inputs before execution, and its outputs after execution."""

    op: Operation
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    source: Source | None = None


class Machine:
    """A simulated NPU that executes a ``Program``.

    Region 0 contains the constants of the program, region 1 is scratch, and region 2 is fast scratch. A Machine serves one thread
    at a time. Several Machines can share a ``Program``.

    Args:
        scratch_bytes, scratch_fast_bytes: Sizes of regions 1 and 2. 0 allocates nothing (npu-reference 1.1).
        regions: Arrays (uint8) to use as memory without a copy, keyed by region number.
        trace: Function called with a Trace after every operation. Tracing is slow, because inputs are copied.
        checks: Names of checks. ``uninitialized`` rejects operations that compute with unwritten bytes (see ``mark_written``).
            ``overlap`` rejects operations whose OFM could overwrite an input before the hardware reads it.
        budget: Maximum work units (see ``Prepared.work``) per run. Default: 2**16 per byte of memory, clamped to 2**35..2**41. A
            stream over budget is rejected before it runs or, if it has branches, stopped at the limit.
        sources: Map from commands to operators, for fault messages, traces and ``Machine.operators``.
        compiled: Whether to run supported operations in compiled code instead of NumPy, without changing results. Traces, checks
            and streams with branches always use NumPy.

    Raises:
        MachineFault: A check is unknown, a region is too large, or an array in ``regions`` is not contiguous uint8.
    """

    def __init__(
        self,
        program: Program,
        scratch_bytes: int = 0,
        scratch_fast_bytes: int = 0,
        trace: Callable[[Trace], None] | None = None,
        regions: Mapping[int, Bytes] | None = None,
        checks: tuple[str, ...] = (),
        budget: int | None = None,
        sources: Sources | None = None,
        compiled: bool = True,
    ):
        if unknown := set(checks) - CHECKS:
            raise MachineFault(f"unknown checks {', '.join(sorted(unknown))}; expected {', '.join(sorted(CHECKS))}")
        sizes = {SCRATCH: scratch_bytes, SCRATCH_FAST: scratch_fast_bytes}
        self.program = program
        self.sources = sources
        self.trace = trace
        self.regions = allocate(program.constants, program.config.internal_bytes, sizes, regions or {})
        self.memory = Memory(self.regions, program.constants, program.decoded)
        total = sum(r.size for r in self.regions.values())
        self.budget = min(max(LEAST_WORK, WORK_PER_BYTE * total), MOST_WORK) if budget is None else budget
        self.largest_array = min(max(LEAST_ARRAY, ARRAY_PER_BYTE * total), MOST_ARRAY)
        self._check_overlap = "overlap" in checks
        self._unwritten = Unwritten(self.memory) if "uninitialized" in checks else None
        self._tallies: dict[Step, Tally] = {}
        self._compiled: Planned | None = None
        self._in_python = not compiled
        self._run = 0

    def region(self, number: int) -> Bytes:
        """Return the bytes of a region. Raise MachineFault if it does not exist."""
        return self.memory.region(number)

    @property
    def plan(self) -> Plan | None:
        """The plan for compiled execution, or None if the program runs in NumPy or has not been run."""
        return None if self._compiled is None else self._compiled.plan

    def mark_written(self, region: int, start: int, size_bytes: int) -> None:
        """Mark bytes, e.g. an input's, as written for the ``uninitialized`` check."""
        if self._unwritten is not None:
            self._unwritten.mark(region, start, size_bytes)

    def run(self) -> None:
        """Execute the stream.

        Raises:
            MachineFault: An operation failed, or the run exceeds the budget. The message contains the failed command, its registers
                and its operator, if known.
        """
        self._run += 1
        try:
            with one_thread():
                if self.program.has_branches:
                    self._run_branches()
                else:
                    self._run_steps()
        except MachineFault as fault:
            op: Operation | None = fault.operation
            source = self._source(op) if op else None
            if source is None:
                raise
            named = MachineFault(f"{fault} The command belongs to {source}.")
            named.operation, named.source = op, source
            raise named from fault

    def _source(self, op: Operation) -> Source | None:
        return self.sources.at(op.offset) if self.sources else None

    def _run_steps(self) -> None:
        planned = self.compile_plan()
        if planned is not None:
            planned.run(self._run, self._execute)
            return
        for step in self.program.steps():
            self._execute(step)

    def compile_plan(self) -> Planned | None:
        """Return the plan for compiled execution, or None if the machine must use NumPy.

        Raises:
            MachineFault: The stream exceeds the budget, or an operation is not supported.
        """
        if self.program.has_branches:
            return None
        if self.program.work > self.budget:
            largest = max(self.program.steps(), key=lambda step: step.prepared.work)
            try:
                self._admit(largest)
                self._check_budget(self.program.work, "requires")
            except MachineFault as fault:
                raise largest.op.locate(fault) from fault
        if self._compiled is None and not self._in_python:
            plan = None
            if not (self.trace or self._check_overlap or self._unwritten is not None) and self._admits_all():
                plan = plan_of(self.program, self.memory)
            if plan is None:
                self._in_python = True
            else:
                self._compiled = Planned(plan, self.memory)
        return self._compiled

    def _admits_all(self) -> bool:
        try:
            for step in self.program.steps():
                self._admit(step)
        except MachineFault:
            return False  # the run raises the fault when it reaches the step
        return True

    def _run_branches(self) -> None:
        program = self.program
        state = dict(registers.reset_state(program.config.family))
        index = spent = 0
        while index < len(program.commands):
            command = program.commands[index]
            index += 1
            spent += COMMAND_WORK
            self._check_budget(spent, "has used")
            if not command.is_operation:
                state.update(command.values)
            elif command.row.name == "NPU_OP_STOP":
                return
            elif command.row.name == "NPU_OP_BRANCH":
                if not command.values["NPU_OP_BRANCH.cond"] or self._result_flag():
                    target = command.values["NPU_OP_BRANCH.target"]
                    if target not in program.at_offset:
                        raise MachineFault(f"command {command.index} branches to byte {target:#x}, where no command starts")
                    index = program.at_offset[target]
            else:
                step = program.step(command, state)
                spent += step.prepared.work + (0 if step in self._tallies else PREPARE_WORK)
                self._check_budget(spent, "has used")
                self._execute(step)
        raise MachineFault("the stream ends without NPU_OP_STOP")

    def _result_flag(self) -> bool:
        last = self.memory.written
        if last is None or last.elements != 1:
            raise MachineFault("a conditional branch requires that the previous operation has an OFM with one element")
        return bool(self.memory.read(last).any())

    def _check_budget(self, work: int, verb: str) -> None:
        if work > self.budget:
            raise MachineFault(
                f"the run {verb} {work} work units, more than its budget of {self.budget} work units. If the stream is trusted, "
                "increase the budget with Machine(budget=) or runtime.load(budget=)."
            )

    def _execute(self, step: Step) -> None:
        started = time.perf_counter()
        try:
            tally = self._tallies.get(step)
            if tally is None:
                self._admit(step)
                tally = self._tallies[step] = Tally()
                if self._check_overlap:
                    check_overlap(self.memory, step)
            if self.trace or self._unwritten is not None:
                self._execute_observed(step)
            else:
                step.prepared.run(self.memory)
        except MachineFault as fault:
            raise step.op.locate(fault) from fault
        tally.add(self._run, time.perf_counter() - started)

    def _admit(self, step: Step) -> None:
        prepared = step.prepared
        largest = max([prepared.elements, *(fm.elements for fm in prepared.maps)])
        if largest > self.largest_array:
            raise MachineFault(
                f"the operation requires an array of {largest} elements; expected at most {self.largest_array} for this memory size"
            )
        for fm in prepared.writes:
            if isinstance(fm, FeatureMap) and fm.in_memory and not self.region(fm.region).flags.writeable:
                raise MachineFault(f"{fm.name} writes to region {fm.region}, which is read-only")

    def _execute_observed(self, step: Step) -> None:
        inputs = self._copies(step.prepared.reads) if self.trace else {}
        if self._unwritten is not None:
            self._unwritten.check_reads(self.memory, step.prepared)
        step.prepared.run(self.memory)
        if self._unwritten is not None:
            self._unwritten.mark_writes(self.memory, step.prepared)
        if self.trace:
            self.trace(Trace(step.op, inputs, self._copies(step.prepared.writes), self._source(step.op)))

    def _copies(self, accesses: Iterable[Access]) -> dict[str, Array]:
        memory = self.memory
        return {
            a.name: (memory.span(a) if isinstance(a, Span) else memory.read(a)).copy()
            for a in accesses
            if isinstance(a, Span) or a.in_memory or a.region in memory.chain
        }

    # Statistics of the runs.

    def _all_tallies(self) -> dict[Step, Tally]:
        if self._compiled is None:
            return self._tallies
        tallies = {**self._tallies, **dict(self._compiled.tallies())}
        waits = Tally(self._compiled.runs, last_run=self._run)
        steps = self.program.steps()
        return {s: tallies.get(s, waits) for s in steps if s in tallies or isinstance(s.prepared.form, Nothing)}

    @property
    def counters(self) -> dict[int, Counter]:
        """The counters of the executed operations, keyed by command index."""
        return {step.op.index: counter_of(step, tally) for step, tally in self._all_tallies().items()}

    @property
    def operators(self) -> list[OperatorCounter]:
        """The counters for each operator of the model."""
        return by_operator(self.counters.values(), self.sources)

    def timeline(self) -> list[tuple[str, float]]:
        """Return (name, seconds) pairs of the last run (see ``counters.timeline``)."""
        return timeline(((step, tally) for step, tally in self._all_tallies().items() if tally.last_run == self._run), self.sources)

    def events(self, ports: Mapping[int, int] | None = None) -> dict[int, int]:
        """Return PMU event counts, keyed by event number (see ``counters.events``). Cycle events require ``sources``."""
        estimates = [o.runs * o.source.op_cycles for o in self.operators if o.source is not None]
        return events(self.counters.values(), self.program.config, ports, sum(estimates) if estimates else None)

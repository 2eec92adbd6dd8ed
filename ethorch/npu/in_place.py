"""Inputs read where they lie, outputs written where they belong: a command stream for which neither is copied around a run.

Vela's plan has an input in the scratch region until its last reader has run; then other tensors lie there, as they do where an
output comes to lie. What reads the input is given another address; what reads the others is not. So each byte of the region is
followed through the stream, for outputs from its end on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ethorch.npu.arrays import Bytes
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.forms import Transfer
from ethorch.npu.memory import SCRATCH, Access
from ethorch.npu.prepared import Prepared
from ethorch.npu.program import Program
from ethorch.npu.runs import Run, read_by, written_by
from ethorch.npu.stream import COP1
from ethorch.npu.stream_writer import Bits, with_registers
from ethorch.support.errors import MachineFault

#: Addresses move by multiples of this: bricks and transfers lie on them (npu-reference 3.2, 7).
IN_PLACE_ALIGNMENT = 16
#: Operands whose registers can name another region: the start of an address register's name -> the register of its region.
_REGIONS = {
    "IFM_BASE": "IFM_REGION", "IFM2_BASE": "IFM2_REGION", "DMA0_SRC": "DMA0_SRC_REGION", "DMA0_IDX": "DMA0_IDX_REGION",
    "OFM_BASE": "OFM_REGION", "DMA0_DST": "DMA0_DST_REGION",
}  # fmt: skip
_OF_TRANSFERS = ("DMA0_SRC_REGION", "DMA0_DST_REGION")  # they have more fields than the region
_TRANSFER = "NPU_OP_DMA_START"
_WAITS = {_TRANSFER: "NPU_OP_DMA_WAIT"}  # of other operations, NPU_OP_KERNEL_WAIT
_MOST = 254  # inputs that a byte can tell from one another
_UNKNOWN = 255  # a byte that may or may not have been written


@dataclass(frozen=True)
class Window:
    """The bytes of the scratch region, from ``start`` to before ``stop``, that an input is copied to, or an output from."""

    start: int
    stop: int


@dataclass(frozen=True)
class _Use:
    """An operand that a window holds: of which operation, by its number, by which runs, and whether it is written."""

    step: int
    runs: tuple[Run, ...]
    window: int
    writes: bool = False


@dataclass(frozen=True)
class _Step:
    """An operation: its name and value, where its command is, what it reads and writes."""

    name: str
    value: int
    offset: int
    prepared: Prepared
    reads: tuple[Run, ...]
    writes: tuple[Run, ...]


class Inputs:
    """How a command stream reads its inputs.

    Args:
        commands: a driver payload.
        scratch_bytes: of the scratch region.
        windows: where the inputs are copied to.
        program: of the commands, where it is there already.
        outputs: where outputs are copied from.

    Attributes:
        readable: for each input: can the stream read it where it lies? Not where an operation reads some bytes of it and some of
            what has been written over it, or reads it as weights; and nowhere in a stream that branches, or that is no COP1.
        writable: for each output, the same: can the stream write all of it elsewhere, and read it there again?

    Raises:
        MachineFault: the payload is malformed, or its stream leaves the scratch region.
    """

    def __init__(
        self,
        commands: bytes,
        scratch_bytes: int,
        windows: Sequence[Window],
        program: Program | None = None,
        outputs: Sequence[Window] = (),
    ):
        self._commands, self._windows, self._outputs = commands, windows, outputs
        self._program = Program(commands) if program is None else program
        plain = commands[:4] == COP1 and not self._program.has_branches
        self._steps = _steps(self._program) if plain and (windows or outputs) else []
        self._reads, self.readable = _uses(_of_inputs, self._steps, scratch_bytes, windows)
        self._writes, self.writable = _uses(_of_outputs, self._steps, scratch_bytes, outputs)

    def follows(self, output: int, number: int) -> bool:
        """Is all of an input read before anything of an output is written, so that both may lie in one place elsewhere?

        Operations other than transfers read and write in their order. Of a transfer, it takes a command that waits for it.
        """
        reads = [use.step for use in self._reads if use.window == number]
        writes = [use.step for use in self._writes if use.window == output and use.writes]
        for read in {self._steps[at].name: at for at in reads}.values():  # the last one of each kind
            for write in {self._steps[at].name: at for at in reversed(writes)}.values():
                kinds = {self._steps[at].name for at in (read, write)}
                wait = _WAITS.get(self._steps[read].name, "NPU_OP_KERNEL_WAIT")
                waited = any(step.name == wait and step.value == 0 for step in self._steps[read + 1 : write])
                if read >= write or (_TRANSFER in kinds and not waited):
                    return False
        return True

    def movable(self, addresses: Sequence[int]) -> list[int]:
        """Numbers of the inputs that the stream can read at these addresses, one for each."""
        pairs = enumerate(zip(self._windows, addresses, strict=True))
        return [n for n, (window, at) in pairs if self.readable[n] and (at - window.start) % IN_PLACE_ALIGNMENT == 0]

    def scratch_end(self, elsewhere: Collection[int], outputs: Collection[int] = ()) -> int:
        """The byte behind the last one of the scratch region that is accessed when these inputs and outputs lie elsewhere."""
        uses = [use for use in self._reads if use.window in elsewhere] + [use for use in self._writes if use.window in outputs]
        moved = {(use.step, run) for use in uses for run in use.runs}
        steps = enumerate(self._steps)
        runs = [(at, run) for at, step in steps for run in (*step.reads, *step.writes) if run.region == SCRATCH]
        return max((run.high for at, run in runs if (at, run) not in moved), default=0)

    def elsewhere(
        self, places: Mapping[int, tuple[int, int]], outputs: Mapping[int, tuple[int, int]] | None = None
    ) -> tuple[bytes, Program]:
        """The payload that reads inputs and writes outputs at other places, and otherwise does what it did; and its program,
        without constants.

        Args:
            places: number of an input that is readable -> the region and the address where it lies. The region is 1 or another odd
                one, the address as far from the window as IN_PLACE_ALIGNMENT wants it.
            outputs: the same of outputs that are writable. Where one lies on an input, it has to follow it.

        Raises:
            MachineFault: an input is not readable, an output not writable, or a place is none.
        """
        settings: dict[int, dict[str, int | Bits]] = {}
        moved: dict[tuple[int, Run], Run] = {}
        sides = (
            ("input", places, self._windows, self.readable, self._reads),
            ("output", outputs or {}, self._outputs, self.writable, self._writes),
        )
        for side, wanted, windows, possible, uses in sides:
            for number, (region, address) in wanted.items():
                delta = address - windows[number].start
                if not possible[number] or delta % IN_PLACE_ALIGNMENT or region | SCRATCH != region:
                    raise MachineFault(f"{side} {number} cannot be at byte {address} of region {region}")
                for use in (use for use in uses if use.window == number):
                    for run in use.runs:
                        own, register = settings.setdefault(self._steps[use.step].offset, {}), _region_register(run)
                        own[run.register] = run.base + delta
                        own[register] = Bits(region) if register in _OF_TRANSFERS else region
                        low, high = run.low + delta, run.high + delta
                        moved[use.step, run] = replace(run, region=region, base=run.base + delta, low=low, high=high)
        result, offsets = with_registers(self._commands, self._program, settings)
        program = Program(result)
        after = [(step.offset, step.reads, step.writes) for step in _steps(program)]
        meant = [
            (
                offsets[step.offset],
                tuple(moved.get((at, run), run) for run in step.reads),
                tuple(moved.get((at, run), run) for run in step.writes),
            )
            for at, step in enumerate(self._steps)
        ]
        if after != meant:
            raise MachineFault("the stream accesses inputs or outputs by addresses that no register holds")
        return result, program


def _region_register(run: Run) -> str:
    return _REGIONS.get(run.register.rstrip("0123"), "")


def _steps(program: Program) -> list[_Step]:
    return [
        _Step(
            step.op.name,
            step.op.values.get(step.op.name, 0),
            step.op.offset,
            step.prepared,
            tuple(read_by(step.prepared)),
            tuple(written_by(step.prepared)),
        )
        for step in program.steps()
    ]


_Follow = Callable[[Sequence[_Step], Bytes], tuple[list[_Use], set[int]]]


def _uses(
    follow: _Follow, steps: Sequence[_Step], scratch_bytes: int, windows: Sequence[Window]
) -> tuple[list[_Use], tuple[bool, ...]]:
    """What accesses windows, as far as all of it can be given other addresses; and for each window, whether it can."""
    left, found = set(range(min(len(windows), _MOST)) if steps else ()), list[_Use]()
    while left:
        marks = np.zeros(scratch_bytes, np.uint8)  # of each byte: the window whose bytes it holds, plus 1; 0 where it holds others
        spoiled = {n for n in left if not _mark(marks, windows[n], n + 1)}
        if not spoiled:
            found, wrong = follow(steps, marks)
            spoiled = wrong & left
        if not spoiled:
            break
        left, found = left - spoiled, []
    return found, tuple(number in left for number in range(len(windows)))


def _mark(marks: Bytes, window: Window, mark: int) -> bool:
    """Mark the bytes of a window; False where it is none, or shares bytes with another one."""
    if not 0 <= window.start <= window.stop <= marks.size or marks[window.start : window.stop].any():
        return False
    marks[window.start : window.stop] = mark
    return True


def _of_inputs(steps: Sequence[_Step], marks: Bytes) -> tuple[list[_Use], set[int]]:
    """What reads the windows, forward from where they hold inputs; and windows that some operation reads in part."""
    found, whose = list[_Use](), marks.copy()
    for at, step in enumerate(steps):
        for runs, seen in _operands(step, marks, step.prepared.reads, step.reads):
            own = seen - {0, _UNKNOWN}
            if len(seen) == 1 and own and all(_region_register(run) for run in runs):
                found.append(_Use(at, runs, own.pop() - 1))
            elif seen != {0}:
                return [], _windows_of(runs, whose)
        _clear(step, marks, _UNKNOWN)
    return found, set()


def _of_outputs(steps: Sequence[_Step], marks: Bytes) -> tuple[list[_Use], set[int]]:
    """What writes the windows and reads them again, backward from where they hold outputs; and windows written in part."""
    found, whose = list[_Use](), marks.copy()
    for at in reversed(range(len(steps))):
        step = steps[at]
        for accesses, all_runs, writes in ((step.prepared.writes, step.writes, True), (step.prepared.reads, step.reads, False)):
            for runs, seen in _operands(step, marks, accesses, all_runs):
                own = seen - {0}
                if len(seen) == 1 and own and all(_region_register(run) for run in runs):
                    found.append(_Use(at, runs, own.pop() - 1, writes))
                elif seen != {0}:
                    return [], _windows_of(runs, whose)
            if writes:
                _clear(step, marks, None)
    return found[::-1], _windows_of([], marks, everywhere=True)


def _windows_of(runs: Sequence[Run], whose: Bytes, everywhere: bool = False) -> set[int]:
    """The windows that share bytes with some runs."""
    parts = [whose] if everywhere else [_bytes(whose, run) for run in runs]
    return {int(mark) - 1 for part in parts for mark in np.unique(part) if mark}


def _operands(
    step: _Step, marks: Bytes, accesses: Sequence[Access], all_runs: Sequence[Run]
) -> list[tuple[tuple[Run, ...], set[int]]]:
    """Operand by operand, of what is read or of what is written: its runs in the scratch region, and the marks on its bytes."""
    found = []
    if isinstance(step.prepared.form, Transfer):
        return [((run,), _of_bytes(_bytes(marks, run))) for run in all_runs if run.region == SCRATCH]
    for access in accesses:
        if access.region == SCRATCH and not (isinstance(access, FeatureMap) and not access.in_memory):
            name = access.name if access.name.startswith("DMA0") else f"{access.name}_BASE"
            runs = tuple(run for run in all_runs if run.register.rstrip("0123") == name.rstrip("0123"))
            if runs:
                found.append((runs, set().union(*map(_of_bytes, _arrays(access, marks)))))
    return found


def _clear(step: _Step, marks: Bytes, perhaps: int | None) -> None:
    """Take the marks off what an operation writes; of what it writes perhaps, as where an index says so, make them ``perhaps``."""
    if isinstance(step.prepared.form, Transfer):
        for run in step.writes:
            if run.region == SCRATCH and perhaps is not None:
                part = _bytes(marks, run)
                part[part != 0] = perhaps
        return
    for access in step.prepared.writes:
        if access.region == SCRATCH and not (isinstance(access, FeatureMap) and not access.in_memory):
            for array in _arrays(access, marks):
                array[...] = 0


def _bytes(marks: Bytes, run: Run) -> Bytes:
    if run.low < 0 or run.high > marks.size:
        raise MachineFault(f"{run.register} reaches bytes {run.low:#x}..{run.high:#x} of a scratch region of {marks.size:#x} bytes")
    return marks[run.low : run.high]


def _arrays(access: Access, marks: Bytes) -> list[npt.NDArray[np.generic]]:
    """The marks of an access, in elements as large as its own."""
    if isinstance(access, FeatureMap):
        return [array for view in access.views(marks) for array in view.arrays]
    return [_bytes(marks, Run(access.name, access.region, access.base, access.base, access.base + access.size_bytes))]


def _of_bytes(array: npt.NDArray[np.generic]) -> set[int]:
    """The marks in an array, byte by byte."""
    same = array.size and bool((array == array.flat[0]).all())
    return set((array.flat[0] if same else np.unique(array)).tobytes())

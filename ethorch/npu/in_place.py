"""Inputs read where they lie: a command stream whose inputs need not be copied into the scratch region before a run.

Vela's plan has an input in the scratch region until its last reader has run; then other tensors lie there. What reads the input is
given another address; what reads the others is not. So each byte of the region is followed through the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ethorch.errors import MachineFault
from ethorch.npu.arrays import Bytes
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.forms import Transfer
from ethorch.npu.memory import SCRATCH, Access
from ethorch.npu.prepared import Prepared
from ethorch.npu.program import Program
from ethorch.npu.runs import Run, read_by, written_by
from ethorch.npu.stream import COP1
from ethorch.npu.stream_writer import Bits, with_registers

#: Addresses move by multiples of this: bricks and transfers lie on them (npu-reference 3.2, 7).
IN_PLACE_ALIGNMENT = 16
#: Operands whose registers can name another region: the start of an address register's name -> the register of its region.
_REGIONS = {"IFM_BASE": "IFM_REGION", "IFM2_BASE": "IFM2_REGION", "DMA0_SRC": "DMA0_SRC_REGION", "DMA0_IDX": "DMA0_IDX_REGION"}
_MOST = 254  # inputs that a byte can tell from one another
_UNKNOWN = 255  # a byte that may or may not have been written


@dataclass(frozen=True)
class Window:
    """The bytes of the scratch region, from ``start`` to before ``stop``, that an input is copied to."""

    start: int
    stop: int


@dataclass(frozen=True)
class _Read:
    """An operand that a window holds: of which operation, by which runs, from which window."""

    offset: int
    runs: tuple[Run, ...]
    window: int


@dataclass(frozen=True)
class _Step:
    """An operation: where its command is, what it reads and writes."""

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

    Attributes:
        readable: for each input: can the stream read it where it lies? Not where an operation reads some bytes of it and some of
            what has been written over it, or reads it as weights; and nowhere in a stream that branches, or that is no COP1.

    Raises:
        MachineFault: the payload is malformed, or its stream leaves the scratch region.
    """

    def __init__(self, commands: bytes, scratch_bytes: int, windows: Sequence[Window], program: Program | None = None):
        self._commands, self._windows = commands, windows
        self._program = Program(commands) if program is None else program
        plain = commands[:4] == COP1 and not self._program.has_branches
        self._steps = _steps(self._program) if plain and windows else []
        left, self._reads = set(range(min(len(windows), _MOST)) if self._steps else ()), list[_Read]()
        while left:
            self._reads, spoiled = _reads(self._steps, scratch_bytes, windows, left)
            if not spoiled:
                break
            left -= spoiled
        self.readable = tuple(number in left for number in range(len(windows)))

    def movable(self, addresses: Sequence[int]) -> list[int]:
        """Numbers of the inputs that the stream can read at these addresses, one for each."""
        pairs = enumerate(zip(self._windows, addresses, strict=True))
        return [n for n, (window, at) in pairs if self.readable[n] and (at - window.start) % IN_PLACE_ALIGNMENT == 0]

    def scratch_end(self, elsewhere: Collection[int]) -> int:
        """The byte behind the last one of the scratch region that the stream accesses when these inputs lie elsewhere."""
        moved = {(read.offset, run) for read in self._reads if read.window in elsewhere for run in read.runs}
        runs = [(step.offset, run) for step in self._steps for run in (*step.reads, *step.writes) if run.region == SCRATCH]
        return max((run.high for offset, run in runs if (offset, run) not in moved), default=0)

    def elsewhere(self, places: Mapping[int, tuple[int, int]]) -> tuple[bytes, Program]:
        """The payload that reads inputs at other places, and otherwise does what it did; and its program, without constants.

        Args:
            places: number of an input that is readable -> the region and the address where it lies. The region is 1 or another odd
                one, the address as far from the window as IN_PLACE_ALIGNMENT wants it.

        Raises:
            MachineFault: an input is not readable, or a place is none.
        """
        settings: dict[int, dict[str, int | Bits]] = {}
        moved: dict[tuple[int, Run], Run] = {}
        for number, (region, address) in places.items():
            delta = address - self._windows[number].start
            if not self.readable[number] or delta % IN_PLACE_ALIGNMENT or region | SCRATCH != region:
                raise MachineFault(f"input {number} cannot be read at byte {address} of region {region}")
            for read in (read for read in self._reads if read.window == number):
                for run in read.runs:
                    own, register = settings.setdefault(read.offset, {}), _region_register(run)
                    own[run.register] = run.base + delta
                    own[register] = Bits(region) if register == "DMA0_SRC_REGION" else region
                    low, high = run.low + delta, run.high + delta
                    moved[read.offset, run] = replace(run, region=region, base=run.base + delta, low=low, high=high)
        result, offsets = with_registers(self._commands, self._program, settings)
        program = Program(result)
        after = [(step.offset, step.reads, step.writes) for step in _steps(program)]
        wanted = [
            (offsets[step.offset], tuple(moved.get((step.offset, run), run) for run in step.reads), step.writes)
            for step in self._steps
        ]
        if after != wanted:
            raise MachineFault("the stream reads inputs by addresses that no register holds")
        return result, program


def _region_register(run: Run) -> str:
    return _REGIONS.get(run.register.rstrip("0123"), "")


def _steps(program: Program) -> list[_Step]:
    return [
        _Step(step.op.offset, step.prepared, tuple(read_by(step.prepared)), tuple(written_by(step.prepared)))
        for step in program.steps()
    ]


def _reads(steps: Sequence[_Step], scratch_bytes: int, windows: Sequence[Window], left: set[int]) -> tuple[list[_Read], set[int]]:
    """What reads the windows ``left``, and those of them that cannot be read in place."""
    marks = np.zeros(scratch_bytes, np.uint8)  # of each byte: the window whose input it holds, plus 1; 0 where it was written
    for number in left:
        window = windows[number]
        if not 0 <= window.start <= window.stop <= scratch_bytes or marks[window.start : window.stop].any():
            return [], {number}
        marks[window.start : window.stop] = number + 1
    found, spoiled = list[_Read](), set[int]()
    for step in steps:
        for runs, seen in _seen(step, marks):
            own = {window - 1 for window in seen if window not in (0, _UNKNOWN)}
            if len(seen) == 1 and own and all(_region_register(run) for run in runs):
                found.append(_Read(step.offset, runs, own.pop()))
            elif seen != {0}:
                spoiled |= {n for n in left for run in runs if windows[n].start < run.high and run.low < windows[n].stop}
        if spoiled:
            return [], spoiled
        _write(step, marks)
    return found, spoiled


def _seen(step: _Step, marks: Bytes) -> list[tuple[tuple[Run, ...], set[int]]]:
    """Operand by operand: its runs in the scratch region, and which marks are on the bytes that it reads."""
    found = []
    if isinstance(step.prepared.form, Transfer):
        return [((run,), _of_bytes(_bytes(marks, run))) for run in step.reads if run.region == SCRATCH]
    for access in step.prepared.reads:
        if access.region == SCRATCH and not (isinstance(access, FeatureMap) and not access.in_memory):
            name = access.name if access.name.startswith("DMA0") else f"{access.name}_BASE"
            runs = tuple(run for run in step.reads if run.register.rstrip("0123") == name.rstrip("0123"))
            if runs:
                found.append((runs, set().union(*map(_of_bytes, _arrays(access, marks)))))
    return found


def _write(step: _Step, marks: Bytes) -> None:
    if isinstance(step.prepared.form, Transfer):
        for run in step.writes:
            if run.region == SCRATCH:
                part = _bytes(marks, run)
                part[part != 0] = _UNKNOWN
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

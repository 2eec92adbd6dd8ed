"""Rewrite command streams to access inputs and outputs at other addresses instead of copying them."""

# Vela reuses the scratch bytes of an input after its last read, and those of an output before its first write.
# To redirect only accesses to the tensor itself, each byte is tracked through the stream, forward for inputs and backward for
# outputs.

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
from ethorch.npu.runs import Run, iterate_reads, iterate_writes
from ethorch.npu.stream import COP1
from ethorch.npu.stream_writer import Bits, with_registers
from ethorch.support.errors import MachineFault

#: Alignment of address changes, required by bricks and transfers (npu-reference 3.2, 7).
IN_PLACE_ALIGNMENT = 16
#: Prefix of an operand's address register -> register of its region, for operands that can use another region.
_REGIONS = {
    "IFM_BASE": "IFM_REGION", "IFM2_BASE": "IFM2_REGION", "DMA0_SRC": "DMA0_SRC_REGION", "DMA0_IDX": "DMA0_IDX_REGION",
    "OFM_BASE": "OFM_REGION", "DMA0_DST": "DMA0_DST_REGION",
}  # fmt: skip
_OF_TRANSFERS = ("DMA0_SRC_REGION", "DMA0_DST_REGION")  # registers with more than one field
_TRANSFER = "NPU_OP_DMA_START"
_WAITS = {_TRANSFER: "NPU_OP_DMA_WAIT"}  # other operations: NPU_OP_KERNEL_WAIT
_MOST = 254  # distinct inputs that a byte's mark can encode
_UNKNOWN = 255  # mark of a byte that could have been overwritten


@dataclass(frozen=True)
class Window:
    """The bytes [start, stop) of an input or output in the scratch region."""

    start: int
    stop: int


@dataclass(frozen=True)
class _Use:
    step: int
    runs: tuple[Run, ...]
    window: int
    writes: bool = False


@dataclass(frozen=True)
class _Step:
    name: str
    value: int
    offset: int
    prepared: Prepared
    reads: tuple[Run, ...]
    writes: tuple[Run, ...]


class Inputs:
    """A command stream's accesses to inputs and outputs.

    Args:
        windows, outputs: Ranges of scratch bytes, one per input or output.

    Attributes:
        readable: For each input, whether the stream can read it at another address. This requires a COP1 stream without
            branches, in which no operation reads the input as weights or together with other bytes.
        writable: For each output, whether the stream can write it, and read it again, at another address.

    Raises:
        MachineFault: The payload is malformed, or accesses bytes outside the scratch region.
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
        """Return True if the stream finishes reading input ``number`` before it writes ``output``, so that both can share bytes.

        Operations execute in order. Only transfers can overlap later operations, until a command waits for them.
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
        """Return the indices of inputs that the stream can read at ``addresses``."""
        pairs = enumerate(zip(self._windows, addresses, strict=True))
        return [n for n, (window, at) in pairs if self.readable[n] and (at - window.start) % IN_PLACE_ALIGNMENT == 0]

    def scratch_end(self, elsewhere: Collection[int], outputs: Collection[int] = ()) -> int:
        """Return the end of the scratch bytes that the stream accesses after the given inputs and outputs are moved."""
        uses = [use for use in self._reads if use.window in elsewhere] + [use for use in self._writes if use.window in outputs]
        moved = {(use.step, run) for use in uses for run in use.runs}
        steps = enumerate(self._steps)
        runs = [(at, run) for at, step in steps for run in (*step.reads, *step.writes) if run.region == SCRATCH]
        return max((run.high for at, run in runs if (at, run) not in moved), default=0)

    def elsewhere(
        self, places: Mapping[int, tuple[int, int]], outputs: Mapping[int, tuple[int, int]] | None = None
    ) -> tuple[bytes, Program]:
        """Rewrite the payload to access inputs and outputs at other addresses.

        Args:
            places: Region and address of each moved input, keyed by input index. The region must be odd, and the
                address must change by a multiple of IN_PLACE_ALIGNMENT.
            outputs: Region and address of each moved output, keyed by output index. An output that overlaps an input must follow it
                (see :meth:`follows`).

        Returns:
            The new payload, and the ``Program`` decoded from it, without constants.

        Raises:
            MachineFault: The stream cannot access an input or output at the requested address.
        """
        settings: dict[int, dict[str, int | Bits]] = {}
        moved: dict[tuple[int, Run], Run] = {}
        sides = (
            ("input", places, self._windows, self.readable, self._reads),
            ("output", outputs or {}, self._outputs, self.writable, self._writes),
        )
        for side, requests, windows, possible, uses in sides:
            for number, (region, address) in requests.items():
                delta = address - windows[number].start
                move = f"cannot move {side} {number} to byte {address} of region {region}"
                if not possible[number]:
                    raise MachineFault(f"{move}, because the stream has branches, or uses it as weights or with other bytes")
                if delta % IN_PLACE_ALIGNMENT or region | SCRATCH != region:
                    raise MachineFault(
                        f"{move}; expected an odd region, and an address that differs from {windows[number].start} by a multiple "
                        f"of {IN_PLACE_ALIGNMENT}"
                    )
                for use in (use for use in uses if use.window == number):
                    for run in use.runs:
                        register = _region_register(run)
                        registers = settings.setdefault(self._steps[use.step].offset, {})
                        registers[run.register] = run.base + delta
                        registers[register] = Bits(region) if register in _OF_TRANSFERS else region
                        low, high = run.low + delta, run.high + delta
                        moved[use.step, run] = replace(run, region=region, base=run.base + delta, low=low, high=high)
        result, offsets = with_registers(self._commands, self._program, settings)
        program = Program(result)
        after = [(step.offset, step.reads, step.writes) for step in _steps(program)]
        expected = [
            (
                offsets[step.offset],
                tuple(moved.get((at, run), run) for run in step.reads),
                tuple(moved.get((at, run), run) for run in step.writes),
            )
            for at, step in enumerate(self._steps)
        ]
        if after != expected:
            raise MachineFault("inputs or outputs cannot be moved, because not all of their addresses are stored in registers")
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
            tuple(iterate_reads(step.prepared)),
            tuple(iterate_writes(step.prepared)),
        )
        for step in program.steps()
    ]


_Follow = Callable[[Sequence[_Step], Bytes], tuple[list[_Use], set[int]]]


def _uses(
    follow: _Follow, steps: Sequence[_Step], scratch_bytes: int, windows: Sequence[Window]
) -> tuple[list[_Use], tuple[bool, ...]]:
    left, uses = set(range(min(len(windows), _MOST)) if steps else ()), list[_Use]()
    while left:
        marks = np.zeros(scratch_bytes, np.uint8)  # index + 1 of the window whose data a byte contains, else 0
        spoiled = {n for n in left if not _mark(marks, windows[n], n + 1)}
        if not spoiled:
            uses, wrong = follow(steps, marks)
            spoiled = wrong & left
        if not spoiled:
            break
        left, uses = left - spoiled, []
    return uses, tuple(number in left for number in range(len(windows)))


def _mark(marks: Bytes, window: Window, mark: int) -> bool:
    if not 0 <= window.start <= window.stop <= marks.size or marks[window.start : window.stop].any():
        return False
    marks[window.start : window.stop] = mark
    return True


def _of_inputs(steps: Sequence[_Step], marks: Bytes) -> tuple[list[_Use], set[int]]:
    uses, whose = list[_Use](), marks.copy()
    for at, step in enumerate(steps):
        for runs, seen in _operands(step, marks, step.prepared.reads, step.reads):
            marked = seen - {0, _UNKNOWN}
            if len(seen) == 1 and marked and all(_region_register(run) for run in runs):
                uses.append(_Use(at, runs, marked.pop() - 1))
            elif seen != {0}:
                return [], _windows_of(runs, whose)
        _clear(step, marks, _UNKNOWN)
    return uses, set()


def _of_outputs(steps: Sequence[_Step], marks: Bytes) -> tuple[list[_Use], set[int]]:
    uses, whose = list[_Use](), marks.copy()
    for at in reversed(range(len(steps))):
        step = steps[at]
        for accesses, all_runs, writes in ((step.prepared.writes, step.writes, True), (step.prepared.reads, step.reads, False)):
            for runs, seen in _operands(step, marks, accesses, all_runs):
                marked = seen - {0}
                if len(seen) == 1 and marked and all(_region_register(run) for run in runs):
                    uses.append(_Use(at, runs, marked.pop() - 1, writes))
                elif seen != {0}:
                    return [], _windows_of(runs, whose)
            if writes:
                _clear(step, marks, None)
    return uses[::-1], _windows_of([], marks, everywhere=True)


def _windows_of(runs: Sequence[Run], whose: Bytes, everywhere: bool = False) -> set[int]:
    parts = [whose] if everywhere else [_bytes(whose, run) for run in runs]
    return {int(mark) - 1 for part in parts for mark in np.unique(part) if mark}


def _operands(
    step: _Step, marks: Bytes, accesses: Sequence[Access], all_runs: Sequence[Run]
) -> list[tuple[tuple[Run, ...], set[int]]]:
    operands = []
    if isinstance(step.prepared.form, Transfer) and step.prepared.form.is_indexed:
        return [((run,), _of_bytes(_bytes(marks, run))) for run in all_runs if run.region == SCRATCH]
    for access in accesses:
        if access.region == SCRATCH and not (isinstance(access, FeatureMap) and not access.in_memory):
            name = access.name if access.name.startswith("DMA0") else f"{access.name}_BASE"
            runs = tuple(run for run in all_runs if run.register.rstrip("0123") == name.rstrip("0123"))
            if runs:
                operands.append((runs, set().union(*map(_of_bytes, _arrays(access, marks)))))
    return operands


def _clear(step: _Step, marks: Bytes, perhaps: int | None) -> None:
    if isinstance(step.prepared.form, Transfer) and step.prepared.form.is_indexed:
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
        raise MachineFault(f"{run.register}: bytes {run.low:#x}..{run.high:#x} exceed the scratch region of {marks.size:#x} bytes")
    return marks[run.low : run.high]


def _arrays(access: Access, marks: Bytes) -> list[npt.NDArray[np.generic]]:
    if isinstance(access, FeatureMap):
        return [array for view in access.views(marks) for array in view.arrays]
    return [_bytes(marks, Run(access.name, access.region, access.base, access.base, access.base + access.size_bytes))]


def _of_bytes(array: npt.NDArray[np.generic]) -> set[int]:
    same = array.size and bool((array == array.flat[0]).all())
    return set((array.flat[0] if same else np.unique(array)).tobytes())

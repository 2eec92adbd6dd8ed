"""Run: what firmware did on a board, virtual or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from ethorch.deploy.virtual_board.faults import Fault
from ethorch.deploy.virtual_board.inference import Inference
from ethorch.deploy.virtual_board.trace import Clocks, events
from ethorch.formats.files import write_whole
from ethorch.support.errors import EthorchError

#: How a run may end: the firmware's own end by semihosting or by 0x04 on the UART; the CPU in trouble or asleep for good;
#: a reset that it asked for; a limit of the caller's.
ENDS = ("exit", "eot", "fault", "asleep", "reset", "timeout", "instructions")


@dataclass(frozen=True)
class End:
    """The end of a run.

    Attributes:
        how: One of ENDS.
        code: The firmware's exit code; None if it did not end by semihosting.
    """

    how: str
    code: int | None = None


@dataclass(frozen=True)
class Run:
    """What a firmware did.

    Attributes:
        board, npu, backend: where it ran: ``corstone-300``, ``ethos-u55-128``, ``unicorn``.
        text: what it printed, on the UART and by semihosting.
        ended: one of ENDS.
        exit_code: what it ended with; None where it did not end by semihosting.
        faults: what was found wrong, each kind at each place once.
        instructions: that the CPU executed; None where nobody counts.
        inferences: runs of the NPU.
        seconds: that all took here.
        notes: what was left out, as accesses to peripherals that the board file does not have.
        measured_cycles: NPU cycles that the firmware printed as its PMU's, on a back end that measures; else None.
        expected_cycles: the sum of the ``cycles`` that the caller gave, to be held against what was measured.
        cpu_clock_hz, npu_clock_hz: of the board.
    """

    board: str
    npu: str
    backend: str
    text: str
    ended: str
    exit_code: int | None
    faults: tuple[Fault, ...] = ()
    instructions: int | None = None
    inferences: tuple[Inference, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    measured_cycles: int | None = None
    expected_cycles: int | None = None
    cpu_clock_hz: float = 1e6
    npu_clock_hz: float = 1e6
    _read: Callable[[int, int], bytes] | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True if the firmware ended by itself, with code 0 if it has one, and without a fault."""
        return self.ended in ("exit", "eot") and not self.exit_code and not self.faults

    @property
    def npu_cycles(self) -> int | None:
        """Estimated cycles of all runs of the NPU; None where nothing is known of them, as on an FVP."""
        return sum(i.cycles for i in self.inferences) if self.inferences else None

    @property
    def measured_ratio(self) -> float | None:
        """Measured cycles by expected ones; None where one of them is not known."""
        if self.measured_cycles is None or not self.expected_cycles:
            return None
        return self.measured_cycles / self.expected_cycles

    @property
    def cpu_seconds(self) -> float:
        """What was taken here without the simulation of the NPU."""
        return self.seconds - sum(i.seconds for i in self.inferences)

    @property
    def bytes_by_region(self) -> dict[int, dict[str, int]]:
        """Region -> ``{"read": bytes, "written": bytes}``, by the NPU in all runs."""
        found: dict[int, dict[str, int]] = {}
        for inference in self.inferences:
            for kind, part in (("read", inference.read_bytes), ("written", inference.written_bytes)):
                for region, size in part.items():
                    row = found.setdefault(region, {"read": 0, "written": 0})
                    row[kind] += size
        return dict(sorted(found.items()))

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the board's memory after the run; EthorchError where there is none, or the memory is not ours to read."""
        if self._read is None:
            raise EthorchError(f"the memory of a run on {self.backend} cannot be read; unicorn's can.")
        return self._read(address, size)

    def check(self) -> Run:
        """The run itself if all was well; EthorchError says what was not."""
        if self.ok:
            return self
        said = [f"the firmware ended by {self.ended!r}" + ("" if self.exit_code is None else f" with code {self.exit_code}")]
        said += [str(fault) for fault in self.faults]
        raise EthorchError("; ".join(said) + (f". It printed: {self.text[-500:].strip()}" if self.text.strip() else ""))

    def trace(self, path: str | PathLike[str]) -> None:
        """Write the run as a trace that Perfetto and Chrome open; EthorchError where nobody counted instructions."""
        if self.instructions is None:
            raise EthorchError(f"a run on {self.backend} counts no instructions, so it has no trace; unicorn counts them.")
        title = f"{self.board}, {self.npu}, estimated"
        clocks = Clocks(self.cpu_clock_hz, self.npu_clock_hz)
        write_whole(path, json.dumps(events(title, self.instructions, self.inferences, clocks)).encode())

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "board": self.board,
            "npu": self.npu,
            "backend": self.backend,
            "ok": self.ok,
            "ended": self.ended,
            "exit_code": self.exit_code,
            "text": self.text,
            "faults": [fault.to_json() for fault in self.faults],
            "instructions": self.instructions,
            "npu_cycles": self.npu_cycles,
            "measured_cycles": self.measured_cycles,
            "expected_cycles": self.expected_cycles,
            "bytes_by_region": self.bytes_by_region,
            "inferences": [inference.to_json() for inference in self.inferences],
            "seconds": self.seconds,
            "notes": list(self.notes),
        }

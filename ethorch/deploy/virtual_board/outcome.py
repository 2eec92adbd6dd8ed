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

#: Possible ends of a run: semihosting, 0x04 on the UART, a CPU fault, a permanent sleep, a requested reset, or a limit set by the
#: caller.
ENDS = ("exit", "eot", "fault", "asleep", "reset", "timeout", "instructions")


@dataclass(frozen=True)
class End:
    """The end of a run.

    Attributes:
        how: One of ENDS.
        code: See ``Run.exit_code``.
    """

    how: str
    code: int | None = None


@dataclass(frozen=True)
class Run:
    """The outcome of a firmware run.

    Attributes:
        board, npu, backend: Environment, e.g. ``corstone-300``, ``ethos-u55-128``, ``unicorn``.
        text: Text printed on the UART and by semihosting.
        ended: Cause of the end: one of ENDS.
        exit_code: Exit code passed to semihosting or returned by the FVP, or None.
        faults: Faults, at most one for each id and location.
        instructions: Number of CPU instructions, or None if they are not counted.
        seconds: Duration on the host.
        notes: Limitations that affected the run, such as accesses to peripherals that the board file does not describe.
        measured_cycles: NPU cycles that the firmware read from the PMU and printed, or None.
        expected_cycles: Sum of the caller's ``cycles``, to compare with ``measured_cycles``, or None.
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
        """True if the firmware ended by itself without faults, and the exit code is 0 or None."""
        return self.ended in ("exit", "eot") and not self.exit_code and not self.faults

    @property
    def npu_cycles(self) -> int | None:
        """The estimated cycles of all NPU runs, or None if unknown, as on an FVP."""
        return sum(i.cycles for i in self.inferences) if self.inferences else None

    @property
    def is_lower_bound(self) -> bool:
        """True if the cycles of at least one NPU run are a lower bound because Vela's estimate is unknown."""
        return any(inference.estimated_by == "board" for inference in self.inferences)

    @property
    def measured_ratio(self) -> float | None:
        if self.measured_cycles is None or not self.expected_cycles:
            return None
        return self.measured_cycles / self.expected_cycles

    @property
    def cpu_seconds(self) -> float:
        """The duration on the host, excluding the simulation of the NPU."""
        return self.seconds - sum(i.seconds for i in self.inferences)

    @property
    def bytes_by_region(self) -> dict[int, dict[str, int]]:
        """The bytes that the NPU read and wrote in all runs: ``{region: {"read": bytes, "written": bytes}}``."""
        bytes_by_region: dict[int, dict[str, int]] = {}
        for inference in self.inferences:
            for kind, part in (("read", inference.read_bytes), ("written", inference.written_bytes)):
                for region, size in part.items():
                    row = bytes_by_region.setdefault(region, {"read": 0, "written": 0})
                    row[kind] += size
        return dict(sorted(bytes_by_region.items()))

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the board's memory after the run. Raise EthorchError if the memory cannot be read."""
        if self._read is None:
            raise EthorchError(f"{self.backend} does not support reading the memory after a run. Use backend='unicorn'.")
        return self._read(address, size)

    def check(self) -> Run:
        """Return self if the run succeeded. Raise EthorchError otherwise."""
        if self.ok:
            return self
        findings = [f"the firmware ended with {self.ended!r}" + ("" if self.exit_code is None else f" (code {self.exit_code})")]
        findings += [str(fault) for fault in self.faults]
        raise EthorchError("; ".join(findings) + (f". It printed: {self.text[-500:].strip()}" if self.text.strip() else ""))

    def trace(self, path: str | PathLike[str]) -> None:
        """Write a trace for Perfetto and Chrome. Raise EthorchError if instructions were not counted."""
        if self.instructions is None:
            raise EthorchError(
                f"a trace requires instruction counts, which {self.backend} does not provide. Use backend='unicorn'."
            )
        title = f"{self.board}, {self.npu}, estimated"
        clocks = Clocks(self.cpu_clock_hz, self.npu_clock_hz)
        write_whole(path, json.dumps(events(title, self.instructions, self.inferences, clocks)).encode())

    def to_json(self) -> dict[str, Any]:
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

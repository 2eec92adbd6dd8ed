"""Fit a board's memory bandwidths to measured times, for ``ethorch boards NAME --fit FILE``."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from ethorch.deploy.virtual_board.estimate import ISSUE_CYCLES
from ethorch.figures.layer import CPU
from ethorch.program.program import Program, load, record_of
from ethorch.support.errors import BoardError, FormatError, SpecError
from ethorch.support.text_files import parse_toml, read_text
from ethorch.support.wording import count_noun
from ethorch.targets.boards import Board
from ethorch.targets.boards.memory_roles import Roles, roles

_ROUNDS = 100
_RANGE = 64.0  # maximum factor between the original and the fitted bandwidth
_TIE = 1e-4  # weight of the distance to the original bandwidth, relative to the squared relative error of a time
_SRAM = "Sram"


@dataclass(frozen=True)
class Fitted:
    """The measured time of a program, and the estimates before and after the fit, in milliseconds."""

    program: str
    measured_ms: float
    before_ms: float
    after_ms: float


@dataclass(frozen=True)
class Calibration:
    """The result of fitting a board to measurements.

    Attributes:
        bytes_per_second: Fitted bandwidth of each memory that limits at least one layer.
        programs: Measured and estimated time of each program.
    """

    board: Board
    bytes_per_second: Mapping[str, float]
    programs: tuple[Fitted, ...]

    @property
    def error(self) -> float:
        """The root mean square of the relative errors after the fit."""
        return _rms([row.after_ms / row.measured_ms - 1 for row in self.programs])

    @property
    def error_before(self) -> float:
        """The root mean square of the relative errors before the fit."""
        return _rms([row.before_ms / row.measured_ms - 1 for row in self.programs])

    @property
    def source(self) -> str:
        """The source that a board file records for each fitted bandwidth."""
        return f"fitted to {count_noun(len(self.programs), 'measurement')}, error {self.error:.0%}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {
            "board": self.board.name,
            "bytes_per_second": dict(self.bytes_per_second),
            "error": self.error,
            "error_before": self.error_before,
            "programs": [vars(row) for row in self.programs],
        }

    def to_toml(self, name: str) -> str:
        """Return the text of a board file with the fitted bandwidths. ``name`` is the name of the board in this file."""
        assert self.board.path is not None
        data = parse_toml(self.board.path.read_text(encoding="utf-8"), str(self.board.path))
        data["name"] = name
        for memory in data["memory"]:
            if memory["name"] in self.bytes_per_second:
                memory["bytes_per_second"] = round(self.bytes_per_second[memory["name"]])
                memory["sources"] = {**memory.get("sources", {}), "bytes_per_second": self.source}
        return tomli_w.dumps(data)


def read_measured(path: Path) -> tuple[tuple[Path, float], ...]:
    """Read pairs of program path and milliseconds from CSV (``program,milliseconds``) or TOML (``[[measured]]`` tables).

    Program paths in the file are relative to the file's folder.

    Raises:
        SpecError: The file cannot be read, or a row is malformed.
    """
    try:
        text = read_text(path)
        rows = parse_toml(text, str(path)).get("measured") if path.suffix == ".toml" else list(csv.DictReader(StringIO(text)))
    except (FormatError, csv.Error) as error:
        raise SpecError(
            str(error) if isinstance(error, FormatError) else f"{path}: expected CSV, got invalid data ({error})."
        ) from None
    if not isinstance(rows, list) or not rows:
        raise SpecError(
            f"{path}: expected at least one measurement, got none. Use CSV with the columns program,milliseconds, or TOML with "
            "[[measured]] tables."
        )
    pairs = []
    for number, row in enumerate(rows, 1):
        try:
            milliseconds = float(row["milliseconds"])
            pairs.append((path.parent / row["program"], milliseconds))
        except (KeyError, TypeError, ValueError):
            raise SpecError(f"{path}, measurement {number}: expected program and milliseconds, got {row!r}.") from None
        if not (math.isfinite(milliseconds) and milliseconds > 0):
            raise SpecError(f"{path}, measurement {number}: expected milliseconds greater than 0, got {milliseconds:g}.")
    return tuple(pairs)


def calibrate(board: Board, measured: Sequence[tuple[Path | bytes, float]]) -> Calibration:
    """Fit the bandwidths of the NPU's memories to measured times.

    Args:
        measured: Programs, each with the measured milliseconds of one call.

    Raises:
        SpecError: ``measured`` is empty, or a program has no delegate for an NPU of the board.
        BoardError: The board was not read from a file.
        EthorchError: A program cannot be read.
    """
    if board.path is None:
        raise BoardError(
            f"expected a board that was read from a file; board {board.name} has no file. Write the board to a .toml file first."
        )
    if not measured:
        raise SpecError("expected at least one measurement, got none.")
    models = [_Model(board, load(path)) for path, _ in measured]
    names = tuple(dict.fromkeys(name for model in models for name in model.memories))
    start = np.array([1 / (board.memory(name).bytes_per_second or board.npus[0].clock_hz) for name in names])
    measured_seconds = np.array([milliseconds / 1e3 for _, milliseconds in measured])
    best, least, waited = start, math.inf, np.zeros(len(names), bool)
    now = start
    for _ in range(_ROUNDS):
        parts = [model.parts(dict(zip(names, now, strict=True)), names) for model in models]
        fixed, moved = np.array([f for f, _ in parts]), np.stack([m for _, m in parts])
        error = float(np.mean(((fixed + moved @ now) / measured_seconds - 1) ** 2))
        if error < least:
            best, least = now, error
        waited |= moved.any(0)
        rows = np.vstack([moved * start / measured_seconds[:, None], math.sqrt(_TIE) * np.eye(len(names))])
        right = np.concatenate([1 - fixed / measured_seconds, np.full(len(names), math.sqrt(_TIE))])
        solved = np.linalg.lstsq(rows, right, rcond=None)[0]
        now = np.sqrt(
            now * start * np.clip(solved, 1 / _RANGE, _RANGE)
        )  # only half a step (in logarithms), because the limiting memory of a layer can change
    seconds = [
        (model.seconds(dict(zip(names, start, strict=True))), model.seconds(dict(zip(names, best, strict=True))))
        for model in models
    ]
    programs = tuple(
        Fitted(str(path) if isinstance(path, Path) else "a program", milliseconds, 1e3 * before, 1e3 * after)
        for (path, milliseconds), (before, after) in zip(measured, seconds, strict=True)
    )
    return Calibration(board, {name: 1 / x for name, x, w in zip(names, best, waited, strict=True) if w}, programs)


class _Model:
    """The layers of a program, each with its computing time in seconds and the bytes that it moves in each board memory."""

    def __init__(self, board: Board, program: Program):
        spec = record_of(program).spec
        if spec is None:
            raise SpecError("fitting bandwidths requires programs with an NPU delegate, got a program that runs on the CPU only.")
        slot, npu = board.npu(program.target)
        used = roles(board, slot, spec.memory_mode)
        self.cpu_seconds = 0.0
        self.layers: list[tuple[float, dict[str, int]]] = []
        for layer in record_of(program).layers:
            if layer.where == CPU:
                self.cpu_seconds += (layer.cycles or 0) / board.cpu.clock_hz
                continue
            computing = layer.npu_cycles or -(-layer.macs // npu.macs) + ISSUE_CYCLES
            moved: dict[str, int] = {}
            for traffic in (layer.read_bytes, layer.written_bytes):
                for memory, count in traffic.items():
                    name = _of_board(memory, used, spec.memory_system.constants_in_sram)
                    moved[name] = moved.get(name, 0) + count
            self.layers.append((computing / slot.clock_hz, moved))
        self.memories = tuple(dict.fromkeys(name for _, moved in self.layers for name in moved))

    def parts(self, per_byte: Mapping[str, float], names: Sequence[str]) -> tuple[float, NDArray[np.float64]]:
        """Return the total seconds of layers not limited by a memory, and, for each memory, the bytes of layers limited by it."""
        fixed, waiting = self.cpu_seconds, np.zeros(len(names))
        for computing, moved in self.layers:
            slowest = max(moved, key=lambda name: moved[name] * per_byte[name], default=None)
            if slowest is None or moved[slowest] * per_byte[slowest] <= computing:
                fixed += computing
            else:
                waiting[names.index(slowest)] += moved[slowest]
        return fixed, waiting

    def seconds(self, per_byte: Mapping[str, float]) -> float:
        return self.cpu_seconds + sum(
            max(computing, *(count * per_byte[name] for name, count in moved.items()), 0.0) for computing, moved in self.layers
        )


def _of_board(memory: str, used: Roles, constants_in_sram: bool) -> str:
    return used.staging.name if memory == _SRAM or constants_in_sram else used.constants.name


def _rms(errors: Sequence[float]) -> float:
    return math.sqrt(sum(error**2 for error in errors) / len(errors))

"""What only compiling knows of a program, read back from the ``program.json`` of its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from ethorch.figures.layer import Layer
from ethorch.figures.memory_report import MemoryReport
from ethorch.figures.typed import check_types
from ethorch.lower.partition_report import PartitionReport
from ethorch.program.attempt import Attempt
from ethorch.program.explanation import State
from ethorch.program.facts import Accuracy, Unchecked, Verification
from ethorch.program.record import Record
from ethorch.report.program_data import read_program_data
from ethorch.support.errors import FormatError

_Row = TypeVar("_Row")


def restore(record: Record, folder: Path) -> None:
    """Add what ``program.json`` says to the record of the method that it is about.

    These are the partition with its reasons, verification, accuracy, attempts, layers, memory, states, and the model's
    multiply-accumulates.

    Raises:
        FormatError: The file is malformed, or written by a newer version.
    """
    file = folder / "program.json"
    if not file.is_file():
        return
    data = read_program_data(folder)
    if data.get("method") != record.method:
        return
    try:
        _restore(record, data)
    except (FormatError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise FormatError(f"{file} is not what Program.save wrote: {error} Save the program again.") from None


def _restore(record: Record, data: Mapping[str, Any]) -> None:
    if data["delegated"] is not None:
        delegates = {"target": data["target"], "delegates": data["delegated"]}
        record.partition = PartitionReport.from_json({**delegates, "cpu": data["cpu"], "without_kernel": data["without_kernel"]})
    if (found := data["verification"]) is not None:
        unchecked = tuple(_row(Unchecked, row) for row in found["unchecked"])
        record.verification = Verification(found["delegates"], found["equal"], unchecked, tuple(map(str, found["repairs"])))
    if (found := data["accuracy"]) is not None:
        sqnr_db = math.inf if found["sqnr_db"] is None else found["sqnr_db"]
        record.measured["accuracy"] = _row(Accuracy, {**found, "sqnr_db": sqnr_db})
    record.tried = tuple(_row(Attempt, row) for row in data["tried"])
    record.states = tuple(_row(State, row) for row in data["states"])
    record.memory = MemoryReport.from_json(data["memory"])
    record.layers = tuple(Layer.from_json(row) for row in data["layers"])
    if not isinstance(data["mac_count"], int):
        raise FormatError(f"mac_count is {data['mac_count']!r}; expected a number.")
    record.mac_count = data["mac_count"]


def _row(kind: type[_Row], row: Mapping[str, Any]) -> _Row:
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    made = kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items() if name in known})
    check_types(made)  # type: ignore[arg-type]
    return made

"""Restore compile-time information from a saved folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ethorch.figures.layer import Layer
from ethorch.figures.memory_report import MemoryReport
from ethorch.figures.typed import read_row
from ethorch.lower.partition_report import PartitionReport
from ethorch.program.attempt import Attempt
from ethorch.program.comparison_file import read_comparisons
from ethorch.program.explanation import State
from ethorch.program.facts import Accuracy, StreamPass, Unchecked, Verification
from ethorch.program.record import Record
from ethorch.report.program_data import IN_FOLDER, read_methods_data
from ethorch.support.errors import FormatError


def restore(record: Record, folder: Path) -> None:
    """Add the contents of ``program.json`` and ``comparison.json`` to the records of all methods in a file.

    Raises:
        FormatError: A file is malformed, or was written by a newer version of ethorch.
    """
    file = folder / IN_FOLDER
    if not file.is_file():
        return
    methods_data = read_methods_data(folder)
    comparisons = read_comparisons(folder)
    for name in record.methods:
        if name not in methods_data:
            continue
        part = record[name]
        try:
            _restore(part, methods_data[name])
        except (FormatError, TypeError, KeyError, ValueError, AttributeError) as error:
            raise FormatError(f"{file}: expected a file written by Program.save ({error}). Save the program again.") from None
        if name in comparisons:
            part.measured["comparison"] = comparisons[name]


def _restore(record: Record, data: Mapping[str, Any]) -> None:
    if data["delegated"] is not None:
        delegates = {"target": data["target"], "delegates": data["delegated"]}
        sections = {name: data[name] for name in ("cpu", "without_kernel", "writer")}
        record.partition = PartitionReport.from_json({**delegates, **sections})
    if (section := data["verification"]) is not None:
        unchecked = tuple(read_row(Unchecked, row) for row in section["unchecked"])
        record.verification = Verification(section["delegates"], section["equal"], unchecked, tuple(map(str, section["repairs"])))
    record.stream_passes = tuple(read_row(StreamPass, row) for row in data["stream_passes"])
    if (section := data["accuracy"]) is not None:
        sqnr_db = math.inf if section["sqnr_db"] is None else section["sqnr_db"]
        record.measured["accuracy"] = read_row(Accuracy, {**section, "sqnr_db": sqnr_db})
    record.tried = tuple(read_row(Attempt, row) for row in data["tried"])
    record.states = tuple(read_row(State, row) for row in data["states"])
    record.model_name = str(data["model"])
    record.memory = MemoryReport.from_json(data["memory"])
    record.layers = tuple(Layer.from_json(row) for row in data["layers"])
    if not isinstance(data["mac_count"], int):
        raise FormatError(f"mac_count: expected an integer, got {data['mac_count']!r}")
    record.mac_count = data["mac_count"]

"""Measure the SQNR of a program's outputs."""

from __future__ import annotations

from ethorch.program.facts import Accuracy
from ethorch.program.record import Record


def accuracy(record: Record) -> Accuracy | None:
    """Measure the SQNR of a program, as described in ``Program.accuracy``. The result is cached."""
    if "accuracy" not in record.measured:
        if record.model is None or record.model.quantized:
            return None
        # importing torch takes 1 second, and a loaded program does not require it
        from ethorch.program.measure.sample_accuracy import accuracy_in_sessions, accuracy_of_samples

        record.measured["accuracy"] = accuracy_in_sessions(record) if len(record.methods) > 1 else accuracy_of_samples(record)
    result: Accuracy | None = record.measured["accuracy"]
    return result

"""SQNR of a program's outputs."""

from __future__ import annotations

from ethorch.program.facts import Accuracy
from ethorch.program.record import Record


def accuracy(record: Record) -> Accuracy | None:
    """Return the SQNR of the program against the float model on at most 8 of its samples; None without a float model.

    Later calls return the same object without running the samples.
    """
    if "accuracy" not in record.measured:
        if record.model is None or record.model.quantized:
            return None
        # 1 second of torch, which the record of a file does not need
        from ethorch.program.measure.sample_accuracy import accuracy_in_sessions, accuracy_of_samples

        record.measured["accuracy"] = accuracy_in_sessions(record) if len(record.methods) > 1 else accuracy_of_samples(record)
    result: Accuracy | None = record.measured["accuracy"]
    return result

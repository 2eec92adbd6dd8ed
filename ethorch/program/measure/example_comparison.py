"""Comparison of a program with its float model on the example inputs."""

from __future__ import annotations

from ethorch.program.comparison import Comparison
from ethorch.program.record import Record
from ethorch.support.errors import EthorchError
from ethorch.support.exclusive import exclusive

#: Largest model, over all methods, for which saving a folder computes the comparison.
MAX_MACS, MAX_OPERATORS = 5_000_000_000, 2_000
_KEY = "comparison"


def known_comparison(record: Record) -> Comparison | None:
    """Return the comparison that was computed before, or that the program's folder contains, if there is one."""
    found: Comparison | None = record.measured.get(_KEY)
    return found


def example_comparison(record: Record) -> Comparison:
    """Return the comparison on the example inputs of a record with a model. The first call computes it.

    Raises:
        EthorchError: The float model is not known.
    """
    found = known_comparison(record)
    if found is None or not found.samples:
        assert record.model is not None
        # 2 seconds of torchao and ExecuTorch, which a record of a file does without
        from ethorch.program.measure.compare import compared

        with exclusive():
            found = record.measured[_KEY] = compared(record, [record.model.example_inputs], None)
    return found


def comparisons_to_save(record: Record) -> dict[str, Comparison]:
    """Return the comparison of each method of the file; one without samples contains the reason that there is none."""
    found: dict[str, Comparison] = {}
    macs = operators = 0
    for name in record.methods:
        part = record[name]
        known = known_comparison(part)
        if known is None:
            macs += part.mac_count
            operators += 0 if part.partition is None else part.partition.npu_operators + len(part.partition.refusals)
            known = _computed(part, macs, operators)
        found[name] = known
    return found


def _computed(record: Record, macs: int, operators: int) -> Comparison:
    if record.model is None:
        return _left_out("the program was loaded from a file, which does not contain the float model")
    if not record.model.example_inputs:
        return _left_out("the model has no inputs")
    for number, limit, unit in ((macs, MAX_MACS, "multiply-accumulates"), (operators, MAX_OPERATORS, "operators")):
        if number > limit:
            return _left_out(f"the model has {number:,} {unit}, and saving compares up to {limit:,}")
    try:
        return example_comparison(record)
    except EthorchError as error:
        return _left_out(str(error))
    except Exception as error:  # of the user's module, for example: the program is saved in any case
        return _left_out(f"comparing failed with {type(error).__name__}: {error}")


def _left_out(reason: str) -> Comparison:
    way_out = "Run `ethorch compare MODEL`, or call compare() on the program that ethorch.compile returns before saving it."
    return Comparison((), (), samples=0, missing=f"the folder contains no comparison, since {reason.rstrip('.')}. {way_out}")

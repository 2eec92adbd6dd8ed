from __future__ import annotations

from ethorch.program.comparison import Comparison
from ethorch.program.record import Record
from ethorch.support.errors import EthorchError
from ethorch.support.exclusive import exclusive

#: Maximum size of all methods that saving a folder compares.
MAX_MACS, MAX_OPERATORS = 5_000_000_000, 2_000
_KEY = "comparison"


def find_comparison(record: Record) -> Comparison | None:
    """Return the comparison that was computed earlier or read from a saved folder, or None."""
    comparison: Comparison | None = record.measured.get(_KEY)
    return comparison


def example_comparison(record: Record) -> Comparison:
    """Return the comparison of a program with its models on the example inputs. The result is cached.

    Raises:
        EthorchError: The float model is unknown.
    """
    comparison = find_comparison(record)
    if comparison is None or not comparison.samples:
        assert record.model is not None
        # imported here because importing torchao and ExecuTorch takes 2 seconds
        from ethorch.program.measure.compare import compare_samples

        with exclusive():
            comparison = record.measured[_KEY] = compare_samples(record, [record.model.example_inputs], None)
    return comparison


def comparisons_to_save(record: Record) -> dict[str, Comparison]:
    """Return the comparison of each method. An omitted comparison has 0 samples, and ``missing`` contains the reason."""
    comparisons: dict[str, Comparison] = {}
    macs = operators = 0
    for name in record.methods:
        part = record[name]
        comparison = find_comparison(part)
        if comparison is None:
            total = macs + part.mac_count, operators + _operator_count(part)
            comparison = _compute_comparison(part, *total)
            if comparison.samples:
                macs, operators = total
        comparisons[name] = comparison
    return comparisons


def _operator_count(record: Record) -> int:
    return 0 if record.partition is None else record.partition.npu_operators + len(record.partition.refusals)


def _compute_comparison(record: Record, macs: int, operators: int) -> Comparison:
    if record.model is None:
        return _omit_comparison("the program was loaded from a file, which does not contain the float model")
    if not record.model.example_inputs:
        return _omit_comparison("the model has no inputs")
    for number, limit, unit in ((macs, MAX_MACS, "multiply-accumulates"), (operators, MAX_OPERATORS, "operators")):
        if number > limit:
            return _omit_comparison(f"the comparisons would run {number:,} {unit} (maximum for all methods: {limit:,})")
    try:
        return example_comparison(record)
    except EthorchError as error:
        return _omit_comparison(str(error))
    except Exception as error:  # an error, e.g. in the user's module, does not prevent saving
        return _omit_comparison(f"the comparison raised {type(error).__name__}: {error}")


def _omit_comparison(reason: str) -> Comparison:
    remedy = "Run `ethorch compare MODEL`, or call compare() on the program returned by ethorch.compile before saving it."
    return Comparison((), (), samples=0, missing=f"comparison.json contains no comparison, because {reason.rstrip('.')}. {remedy}")

"""Read and write ``comparison.json``, which contains each method's comparison, in a saved folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ethorch.figures.typed import read_row, write_row
from ethorch.program.comparison import Comparison, DelegateComparison, LayerComparison, OutputComparison
from ethorch.program.facts import Accuracy
from ethorch.support.errors import FormatError
from ethorch.support.text_files import check_format, read_json

NAME = "comparison.json"
_FORMAT = 1
_ROWS = {"outputs": OutputComparison, "delegates": DelegateComparison, "layers": LayerComparison}


def write_comparisons(comparisons: Mapping[str, Comparison]) -> bytes:
    """Return the contents of ``comparison.json``."""
    methods = {
        name: {
            **{key: [write_row(row) for row in getattr(comparison, key)] for key in _ROWS},
            "samples": comparison.samples,
            "missing": comparison.missing,
        }
        for name, comparison in comparisons.items()
    }
    return (json.dumps({"format": _FORMAT, "methods": methods}, indent=2, allow_nan=False) + "\n").encode()


def read_comparisons(folder: Path) -> dict[str, Comparison]:
    """Return the comparison of each method, or an empty dict if the folder has no ``comparison.json``.

    Raises:
        FormatError: The file is malformed, or a newer version of ethorch wrote it.
    """
    file = folder / NAME
    if not file.is_file():
        return {}
    data = read_json(file, "Save the program again.")
    check_format(data.get("format"), _FORMAT, str(file), "Save the program again.")
    try:
        return {name: _comparison(method_data) for name, method_data in data["methods"].items()}
    except (FormatError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise FormatError(f"{file}: expected a file written by Program.save ({error}). Save the program again.") from None


def accuracy_of(comparison: Comparison) -> Accuracy | None:
    """Return the minimum SQNR of all outputs, or None if the SQNR of any output is unknown."""
    figures = [output.npu_db for output in comparison.outputs]
    if not comparison.samples or not figures or any(map(math.isnan, figures)):
        return None
    return Accuracy(min(figures), comparison.samples)


def _comparison(data: Mapping[str, Any]) -> Comparison:
    rows: dict[str, Any] = {key: tuple(read_row(kind, row) for row in data[key]) for key, kind in _ROWS.items()}
    samples, missing = data["samples"], data["missing"]
    if type(samples) is not int or samples < 0 or not isinstance(missing, str):
        raise FormatError(f"expected an integer as 'samples' and a string as 'missing', got {samples!r:.60} and {missing!r:.60}")
    return Comparison(samples=samples, missing=missing, **rows)

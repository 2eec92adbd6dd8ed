"""Facts about each operator, read from ``operators.json``, which ``python -m tools.docs`` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("operators.json")


@dataclass(frozen=True)
class OperatorFacts:
    """Facts about an ``OpSpec``.

    Attributes:
        names, kind, doc, absorbs, moves: See ``OpSpec``.
        adapters: Names of other operators converted to this operator.
        pytorch: Names of PyTorch functions, methods and modules that compute this operator.
        file: Path of the definition, relative to ``ethorch/``.
        has_float_form: Whether the operator can be lowered to float TOSA operators.
        calls: Source text of the first sample call and all refused ones, keyed by index.
        tensors: Description of the tensors in the first sample call.
    """

    names: tuple[str, ...]
    adapters: tuple[str, ...]
    pytorch: tuple[str, ...]
    kind: str
    file: str
    doc: str
    has_float_form: bool
    absorbs: bool
    moves: bool
    calls: dict[int, str]
    tensors: str

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.names[0]

    @property
    def source(self) -> str:
        """The definition's file, and the number of the first line with the operator's name, e.g. ``lower/ops/conv.py:60``."""
        lines = _lines(self.file)
        line_number = next((number for number, line in enumerate(lines, 1) if f'"{self.name}"' in line), None)
        return self.file if line_number is None else f"{self.file}:{line_number}"


@cache
def operator_facts() -> tuple[OperatorFacts, ...]:
    """Return the operators in ``operators.json``, sorted by name."""
    rows = json.loads(PATH.read_text(encoding="utf-8"))
    return tuple(_fact(row) for row in rows)


def _fact(row: dict[str, Any]) -> OperatorFacts:
    for key in ("names", "adapters", "pytorch"):
        row[key] = tuple(row[key])
    return OperatorFacts(**{**row, "calls": {int(number): call for number, call in row["calls"].items()}})


@cache
def _lines(file: str) -> Sequence[str]:
    return (PATH.parent.parent / file).read_text(encoding="utf-8").splitlines()

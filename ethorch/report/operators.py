"""Facts about each operator, stored in ``operators.json``, so that listings require neither torch nor the lowerings.

``python -m tools.docs`` writes the file.
"""

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
    """Facts about an ``OpSpec`` for listings.

    Attributes:
        names, kind, doc, absorbs, moves: See ``OpSpec``.
        adapters: Other names that are lowered as this operator.
        pytorch: Names of public functions, methods and modules of PyTorch.
        file: File of the definition, below ``ethorch/``.
        has_float_form: Whether it has a float form.
        calls: Samples as text: the first, and those that an NPU refuses.
        tensors: Tensors of the first call, as text.
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
        """Canonical name."""
        return self.names[0]

    @property
    def source(self) -> str:
        """File and first line with the name, ``lower/ops/conv.py:60``, or only the file."""
        lines = _lines(self.file)
        line_number = next((number for number, line in enumerate(lines, 1) if f'"{self.name}"' in line), None)
        return self.file if line_number is None else f"{self.file}:{line_number}"


@cache
def operator_facts() -> tuple[OperatorFacts, ...]:
    """Return the operators in ``operators.json``, by name."""
    rows = json.loads(PATH.read_text(encoding="utf-8"))
    return tuple(_fact(row) for row in rows)


def _fact(row: dict[str, Any]) -> OperatorFacts:
    for key in ("names", "adapters", "pytorch"):
        row[key] = tuple(row[key])
    return OperatorFacts(**{**row, "calls": {int(number): call for number, call in row["calls"].items()}})


@cache
def _lines(file: str) -> Sequence[str]:
    return (PATH.parent.parent / file).read_text(encoding="utf-8").splitlines()

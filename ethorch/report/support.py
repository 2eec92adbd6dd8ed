"""The supported calls of each operator on each NPU family, read from ``support.json``.

``python -m tools.support`` performs a dry run of the lowering, and writes the results to ``support.json``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ethorch.support.errors import Reason

PATH = Path(__file__).with_name("support.json")
#: The NPU that represents each family in the dry run.
FAMILIES = {"U55": "ethos-u55-128", "U65": "ethos-u65-256", "U85": "ethos-u85-256"}
ACTIVATIONS = ("int8", "int16")
#: The cases of the dry run: each family with each activation type, and TOSA's FP profile.
CASES = (*(f"{family} {activations}" for family in FAMILIES for activations in ACTIVATIONS), "TOSA FP")


@dataclass(frozen=True)
class Refused:
    """A sample call that the NPU does not support.

    Attributes:
        call: Index in the operator's sample calls.
        reason: The reason and the remedy.
    """

    call: int
    reason: Reason


@dataclass(frozen=True)
class Support:
    """The results of the dry run for one operator.

    Attributes:
        refused: Refused calls for each case. See :data:`CASES`.
        tosa: TOSA operators of the first supported call for each case.
    """

    calls: int
    refused: dict[str, tuple[Refused, ...]]
    tosa: dict[str, tuple[str, ...]]

    def verdict(self, case: str) -> str:
        """Return the number of supported calls as text: ``all``, ``no``, or e.g. ``3 of 5``."""
        left = self.calls - len(self.refused[case])
        return "all" if left == self.calls else f"{left} of {self.calls}" if left else "no"


@cache
def table() -> dict[str, Support]:
    """Return the results of the dry run, keyed by operator name."""
    return {name: _read(row) for name, row in json.loads(PATH.read_text(encoding="utf-8")).items()}


def _read(row: dict[str, Any]) -> Support:
    refused = {
        case: tuple(Refused(call, Reason(id, text, remedy)) for call, id, text, remedy in row["refused"].get(case, []))
        for case in CASES
    }
    return Support(row["calls"], refused, {case: tuple(row["tosa"].get(case, ())) for case in CASES})

"""Supported calls of each operator on each NPU, from a dry run of the lowering, stored in ``support.json``.

``python -m tools.support`` writes the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ethorch.support.errors import Reason

PATH = Path(__file__).with_name("support.json")
#: One NPU of each family, which represents its family.
FAMILIES = {"U55": "ethos-u55-128", "U65": "ethos-u65-256", "U85": "ethos-u85-256"}
ACTIVATIONS = ("int8", "int16")
#: Cases of the dry run: families with each type of activations, and TOSA's FP profile.
CASES = (*(f"{family} {activations}" for family in FAMILIES for activations in ACTIVATIONS), "TOSA FP")


@dataclass(frozen=True)
class Refused:
    """A call that stays on the CPU.

    Attributes:
        call: Number of the operator's sample.
        reason: Reason.
    """

    call: int
    reason: Reason


@dataclass(frozen=True)
class Support:
    """Results of the dry run for one operator.

    Attributes:
        calls: Number of samples.
        refused: Refused calls by case, see CASES.
        tosa: TOSA operators of the first call by case.
    """

    calls: int
    refused: dict[str, tuple[Refused, ...]]
    tosa: dict[str, tuple[str, ...]]

    def verdict(self, case: str) -> str:
        """Return ``all``, ``3 of 5`` or ``no``."""
        left = self.calls - len(self.refused[case])
        return "all" if left == self.calls else f"{left} of {self.calls}" if left else "no"


@cache
def table() -> dict[str, Support]:
    """Return the results by operator."""
    return {name: _read(row) for name, row in json.loads(PATH.read_text(encoding="utf-8")).items()}


def _read(row: dict[str, Any]) -> Support:
    refused = {
        case: tuple(Refused(call, Reason(id, text, way_out)) for call, id, text, way_out in row["refused"].get(case, []))
        for case in CASES
    }
    return Support(row["calls"], refused, {case: tuple(row["tosa"].get(case, ())) for case in CASES})

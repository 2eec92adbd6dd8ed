"""Which calls of each operator each NPU runs: found by a dry run of the lowering, kept in ``support.json``.

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
#: One NPU of each family: what one can run, all of its family can.
FAMILIES = {"U55": "ethos-u55-128", "U65": "ethos-u65-256", "U85": "ethos-u85-256"}
ACTIVATIONS = ("int8", "int16")
#: What is tried: families with each type of activations, and TOSA's profile of floats.
CASES = (*(f"{family} {activations}" for family in FAMILIES for activations in ACTIVATIONS), "TOSA FP")


@dataclass(frozen=True)
class Refused:
    """A call that stays on the CPU.

    Attributes:
        call: which of the operator's samples.
        reason: why.
    """

    call: int
    reason: Reason


@dataclass(frozen=True)
class Support:
    """What was tried of one operator.

    Attributes:
        calls: how many.
        refused: case, as in CASES -> the calls that stay on the CPU.
        tosa: case -> the TOSA operators that the first call becomes; empty where it is refused.
    """

    calls: int
    refused: dict[str, tuple[Refused, ...]]
    tosa: dict[str, tuple[str, ...]]

    def verdict(self, case: str) -> str:
        """``all``, ``3 of 5`` or ``no``."""
        left = self.calls - len(self.refused[case])
        return "all" if left == self.calls else f"{left} of {self.calls}" if left else "no"


@cache
def table() -> dict[str, Support]:
    """Operator -> what was found, as ``support.json`` has it."""
    return {name: _read(row) for name, row in json.loads(PATH.read_text(encoding="utf-8")).items()}


def _read(row: dict[str, Any]) -> Support:
    refused = {
        case: tuple(Refused(call, Reason(id, text, way_out)) for call, id, text, way_out in row["refused"].get(case, []))
        for case in CASES
    }
    return Support(row["calls"], refused, {case: tuple(row["tosa"].get(case, ())) for case in CASES})

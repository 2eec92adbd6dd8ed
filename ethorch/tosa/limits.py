"""Limits: what one NPU family can run of a TOSA operator, as ranges over the features its row in the opset names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ethorch.errors import Reason

Features = Mapping[str, int]


@dataclass(frozen=True)
class Range:
    """low..high, both allowed."""

    low: int
    high: int

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


def upto(high: int) -> Range:
    """1..high."""
    return Range(1, high)


@dataclass(frozen=True)
class Limits:
    """One operator's limits.

    Attributes:
        ranges: feature -> allowed range.
        dtypes: allowed dtypes of the first operand; None for all that TOSA has.
        present: False where the NPU has no such operator.
        way_out: what a user can do about a refusal.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    dtypes: frozenset[str] | None = None
    present: bool = True
    way_out: str = "It stays on the CPU."

    def refuse(self, operator: str, dtype: str, features: Features, target: str) -> Reason | None:
        """Why these operands cannot run, or None.

        Args:
            operator: its TOSA name.
            dtype: of its first operand.
            features: the numbers that its row of the opset names.
            target: the NPU's name, "" for TOSA itself.
        """
        where = f" on {target}" if target else ""
        if not self.present:
            return Reason(f"{operator}.absent", f"there is no {operator}{where}", self.way_out)
        if self.dtypes is not None and dtype not in self.dtypes:
            return Reason(
                f"{operator}.dtype",
                f"{operator} of {dtype}, allowed are {', '.join(sorted(self.dtypes))}{where}",
                self.way_out,
            )
        for feature, allowed in self.ranges.items():
            if features[feature] not in allowed:
                text = f"{operator} has {feature} {features[feature]}, allowed is {allowed}{where}"
                return Reason(f"{operator}.{feature}", text, self.way_out)
        return None


ABSENT = Limits(present=False)

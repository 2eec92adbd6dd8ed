"""PartitionReport: which operators are on the NPU, and why the others are not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ethorch.errors import Reason
from ethorch.tosa.ir import Origin


@dataclass(frozen=True)
class Refusal:
    """One operator that stays on the CPU: which, where in the user's code, and why."""

    node: str
    origin: Origin
    reason: Reason

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"


@dataclass
class PartitionReport:
    """What a partitioner decided, over every graph it has seen.

    Attributes:
        target: name of the NPU.
        delegated: FX names of operators on the NPU, per delegate tag (quantize and dequantize not counted).
        refusals: what stays on the CPU, with reasons.
    """

    target: str
    delegated: dict[str, list[str]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)

    def restore(self, before: PartitionReport) -> None:
        """Forget what came since ``before`` was copied."""
        self.delegated, self.refusals = before.delegated, before.refusals

    @property
    def npu_operators(self) -> int:
        return sum(len(names) for names in self.delegated.values())

    def summary(self) -> str:
        """One line: how many operators run where, and which do not run on the NPU."""
        total, count = self.npu_operators + len(self.refusals), len(self.delegated)
        line = f"{self.npu_operators} of {total} operators on {self.target} in {count} delegate{'s' if count != 1 else ''}"
        if self.refusals:
            names = sorted({refusal.origin.target for refusal in self.refusals})
            line += f"; {len(self.refusals)} on the CPU: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        return line

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "target": self.target,
            "delegates": self.delegated,
            "cpu": [
                {
                    "node": r.node,
                    "operator": r.origin.target,
                    "module": r.origin.module,
                    "source": r.origin.source,
                    "id": r.reason.id,
                    "reason": r.reason.text,
                    "way_out": r.reason.way_out,
                }
                for r in self.refusals
            ],
        }

"""Violations of the rules for command streams."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rejection:
    rule: str  # identifier, e.g. shram-layout
    index: int  # among kernels and transfers, or their number for outputs
    operation: str  # name and mode, e.g. NPU_OP_POOL AVERAGE
    register: str
    found: int | str
    allowed: str

    def __str__(self) -> str:
        return f"{self.rule}: operation {self.index}, {self.operation}: {self.register} is {self.found}; allowed: {self.allowed}"

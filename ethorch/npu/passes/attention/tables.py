"""Slots of internal memory for 256-byte lookup tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ethorch.npu.ir import Op
from ethorch.npu.memory import INTERNAL
from ethorch.npu.passes.attention.blocks import shares_tables
from ethorch.npu.registers import Npu
from ethorch.npu.runs import Run

SLOTS, SLOT_BYTES = 8, 256


def find_free_slots(ops: Sequence[Op], first: int, last: int) -> list[int]:
    used: set[int] = set()
    decided: set[int] = set()
    for position in range(first, len(ops)):
        op = ops[position]
        reads, writes = _list_slots(op.npu, op.reads), _list_slots(op.npu, op.writes)
        used |= reads - decided
        used |= writes if position <= last else set()
        decided |= reads | writes
        if len(decided) == SLOTS and position >= last:
            break
    return [slot for slot in range(SLOTS) if slot not in used]


def _list_slots(npu: Npu, runs: Sequence[Run]) -> set[int]:
    inside = [run for run in runs if run.region == INTERNAL]
    return {
        slot
        for run in inside
        for slot in range((run.low - npu.lut_base) // SLOT_BYTES, -(-(run.high - npu.lut_base) // SLOT_BYTES))
        if 0 <= slot < SLOTS
    }


@dataclass
class Slots:
    """The slots into which new operations have loaded lookup tables."""

    npu: Npu
    contents: dict[int, int] = field(default_factory=dict)  # address of the table in each slot

    def observe(self, ops: Sequence[Op]) -> None:
        """Remove the lookup tables that ``ops`` overwrite."""
        if not self.contents:
            return
        if ops and shares_tables(self.npu):
            self.contents.clear()
        for op in ops:
            for slot in _list_slots(self.npu, op.writes):
                self.contents.pop(slot, None)

    def choose(self, tables: Sequence[int], free: Sequence[int]) -> list[int] | None:
        """Return a slot for each lookup table, preferably one that already contains it. Return None if too few slots are free."""
        loaded = {address: slot for slot, address in self.contents.items() if slot in free}
        rest = iter([slot for slot in reversed(free) if slot not in loaded.values()] + list(loaded.values()))
        if len(free) < len(tables):
            return None
        chosen: list[int] = []
        for address in tables:
            slot = loaded.get(address)
            while slot is None or slot in chosen:
                slot = next(rest)
            chosen.append(slot)
        return chosen

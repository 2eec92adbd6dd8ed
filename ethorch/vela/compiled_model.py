"""What Vela made of a TOSA graph: command stream, constants, memory, and its estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from ethorch.formats.payload import DelegatePayload, IoTensor

Tables = Mapping[str, tuple[list[str], list[list[str]]]]  # table name -> column names, rows of text

_CONTROL_FLOW = {"If", "While"}  # Vela's names of COND_IF and WHILE_LOOP


@dataclass(frozen=True)
class Access:
    """Traffic of one kind (FeatureMap, Weights, Scales, Lut) with one memory."""

    read_bytes: int
    written_bytes: int
    cycles: int


@dataclass(frozen=True)
class Memory:
    """One memory, as Vela estimates its use: peak bytes allocated, cycles spent on it, traffic by kind."""

    peak_bytes: int
    access_cycles: int
    accesses: Mapping[str, Access]


@dataclass(frozen=True)
class Performance:
    """Vela's estimate, not a measurement. Cycles are of the NPU core clock.

    Attributes:
        npu_cycles: computing, with exposed weight and table transfers: the sum over operations.
        total_cycles: the larger of computing and each memory's access, summed over operations.
        mac_count: multiply-accumulates.
        npu_ops, cascades, cascaded_ops: scheduled operations; groups computed in stripes; operations in such groups.
        original_weight_bytes, encoded_weight_bytes: before and after Vela's weight compression.
        read_only_bytes: size of region 0 that is kept in flash or DRAM.
        staging_area: name of the memory that staging uses.
        memories: memory name (Sram, Dram, OffChipFlash, OnChipFlash, shram, lutram) to its use.
        core_clock_hz: clock of the system config.
    """

    npu_cycles: int
    total_cycles: int
    mac_count: int
    npu_ops: int
    cascades: int
    cascaded_ops: int
    original_weight_bytes: int
    encoded_weight_bytes: int
    read_only_bytes: int
    staging_area: str
    memories: Mapping[str, Memory]
    core_clock_hz: float

    @property
    def sram_bytes(self) -> int:
        """Peak use of SRAM; with Sram_Only that includes the constants."""
        return self._peak("Sram")

    @property
    def dram_bytes(self) -> int:
        return self._peak("Dram")

    @property
    def flash_bytes(self) -> int:
        return self._peak("OffChipFlash") + self._peak("OnChipFlash")

    @property
    def inference_seconds(self) -> float:
        return self.total_cycles / self.core_clock_hz

    def _peak(self, name: str) -> int:
        return self.memories[name].peak_bytes if name in self.memories else 0


@dataclass(frozen=True)
class ScheduledOp:
    """One operation of Vela's schedule, and the way back to the TOSA operator it was made from.

    Attributes:
        name: the tensor it writes; of a fused operation, the last one.
        operator: Vela's name of the operation.
        op_cycles: estimate; the largest of npu_cycles and each memory's access cycles.
        npu_cycles: computing alone.
        macs: multiply-accumulates.
        access_cycles: cycles per memory.
        tosa_op: index in the TOSA block's operator list, CONST included; None where Vela made the operation up.
        command_offsets: byte offset, from the first command word, of the last NPU_OP of each of its stripes, ascending.
    """

    name: str
    operator: str
    op_cycles: int
    npu_cycles: int
    macs: int
    access_cycles: Mapping[str, int]
    tosa_op: int | None
    command_offsets: tuple[int, ...]


@dataclass(frozen=True)
class CompiledModel:
    """What Vela made of one graph.

    Attributes:
        command_stream: the driver payload, COP1 or COP2 header included.
        constants: region 0.
        scratch_bytes: size of region 1.
        scratch_fast_bytes: size of region 2, the staging memory of Dedicated_Sram modes; 0 where there is none.
        inputs, outputs: in the order of the TOSA graph.
        performance: Vela's estimates.
        load_tables: reads Vela's database; ``tables`` keeps what it returns.
    """

    command_stream: bytes = field(repr=False)
    constants: bytes = field(repr=False)
    scratch_bytes: int
    scratch_fast_bytes: int
    inputs: tuple[IoTensor, ...]
    outputs: tuple[IoTensor, ...]
    performance: Performance
    load_tables: Callable[[], Tables] = field(repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without Vela's own objects: the database is read first."""
        return {**self.__dict__, "load_tables": partial(dict, self.tables)}

    @cached_property
    def payload(self) -> DelegatePayload:
        """What firmware gets. PayloadError where Vela made what no payload can say."""
        return DelegatePayload(self.command_stream, self.constants, self.scratch_bytes, self.inputs, self.outputs)

    @cached_property
    def tables(self) -> Tables:
        """Vela's database as it is: table name to column names and rows of text."""
        return self.load_tables()

    def rows(self) -> tuple[ScheduledOp, ...]:
        """The schedule, an entry for each operation, in Vela's order."""
        return self._rows

    @cached_property
    def _rows(self) -> tuple[ScheduledOp, ...]:
        def table(name: str) -> list[dict[str, str]]:
            header, rows = self.tables.get(name, ([], []))
            return [dict(zip(header, row, strict=False)) for row in rows]

        source_key = {row["id"]: row["ext_key"] for row in table("source")}
        source_of = {row["id"]: row["source_id"] for row in table("optimised")}
        offsets: dict[str, list[int]] = {}
        for row in table("queue"):
            offsets.setdefault(row["scheduled_id"], []).append(int(row["offset"]))
        performance = table("perf")
        _add_regions(performance, offsets)
        scheduled = []
        for row in performance:
            key = source_key.get(source_of.get(row["optimised_id"], row["source_id"]), "")
            scheduled.append(
                ScheduledOp(
                    name=row["name"],
                    operator=row["operator"],
                    op_cycles=int(row["op_cycles"]),
                    npu_cycles=int(row["npu_cycles"]),
                    macs=int(row["mac_count"]),
                    access_cycles={name.removesuffix("_ac"): int(row[name]) for name in row if name.endswith("_ac") and row[name]},
                    tosa_op=int(key) if key.lstrip("-").isdigit() and int(key) >= 0 else None,
                    command_offsets=tuple(sorted(offsets.get(row["id"], ()))),
                )
            )
        return tuple(scheduled)

    def around_peak(self, share: float) -> frozenset[str]:
        """Names of the operations while which so much of the arena's peak is alive, and of those beside them.

        Args:
            share: of the peak, at least.
        """
        header, rows = self.tables["perf"]
        name, usage = header.index("name"), header.index("staging_usage")
        alive = [int(row[usage]) for row in rows]
        at = [number for number, size in enumerate(alive) if size >= share * max(alive)]
        return frozenset(rows[number][name] for place in at for number in range(max(place - 1, 0), min(place + 2, len(rows))))

    def op_at(self, offset: int) -> ScheduledOp | None:
        """The operation that the command at this byte offset belongs to; None behind the last.

        A command belongs to the first queue entry at or behind it: the registers, transfers and helper operations of
        an operation precede its last NPU_OP (npu-reference 10).
        """
        return next((op for end, op in self._by_offset if end >= offset), None)

    @cached_property
    def _by_offset(self) -> list[tuple[int, ScheduledOp]]:
        ends = [(end, op) for op in self.rows() for end in op.command_offsets]
        return sorted(ends, key=lambda entry: entry[0])


def with_offsets(tables: Tables, moved: Callable[[int], int]) -> Tables:
    """Vela's database of a stream whose commands lie elsewhere.

    Args:
        moved: byte offset of a command, from the first command word -> the one that it has now.
    """
    if "queue" not in tables:
        return tables
    header, rows = tables["queue"]
    at = header.index("offset")
    return {**tables, "queue": (header, [[*row[:at], str(moved(int(row[at]))), *row[at + 1 :]] for row in rows])}


def _add_regions(performance: list[dict[str, str]], offsets: dict[str, list[int]]) -> None:
    """Give control flow the commands of its regions: those before the operation behind it that no entry of the table has.

    Vela's table of performance has one entry for the control flow, whose id its table of commands does not have, and none
    for what the regions hold. Where two control flows stand side by side, the first gets the commands of both.
    """
    known = {row["id"] for row in performance}
    inside = sorted(offset for id, found in offsets.items() if id not in known for offset in found)
    for position, row in enumerate(performance):
        if row["operator"] in _CONTROL_FLOW and row["id"] not in offsets:
            behind = next((min(offsets[later["id"]]) for later in performance[position + 1 :] if later["id"] in offsets), math.inf)
            offsets[row["id"]] = [offset for offset in inside if offset < behind]
            inside = [offset for offset in inside if offset >= behind]

"""Output of Vela: command stream, constants, memory usage and estimates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.npu.passes.effect import PassEffect

Tables = Mapping[str, tuple[list[str], list[list[str]]]]  # table name -> column names, rows of text

_CONTROL_FLOW = {"If", "While"}  # Vela's names for COND_IF and WHILE_LOOP


@dataclass(frozen=True)
class Performance:
    """Vela's performance estimate, in cycles of the NPU core clock.

    Attributes:
        npu_cycles: Cycles of computation, and of weight and table transfers that do not overlap with computation.
        total_cycles: Sum of ``ScheduledOp.op_cycles`` over all operations.
        cascades, cascaded_ops: Number of cascades (groups of operations computed in stripes), and number of operations in cascades.
        original_weight_bytes, encoded_weight_bytes: Weight size before and after compression.
        read_only_bytes: Bytes of region 0 in flash or DRAM.
        staging_area: Name of the staging memory.
        peak_bytes: Peak usage of each memory, keyed by name (Sram, Dram, OffChipFlash, OnChipFlash, shram, lutram).
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
    peak_bytes: Mapping[str, int]
    core_clock_hz: float

    @property
    def sram_bytes(self) -> int:
        """The peak SRAM usage. In Sram_Only mode, it includes the constants."""
        return self.peak_bytes.get("Sram", 0)

    @property
    def dram_bytes(self) -> int:
        return self.peak_bytes.get("Dram", 0)

    @property
    def flash_bytes(self) -> int:
        return self.peak_bytes.get("OffChipFlash", 0) + self.peak_bytes.get("OnChipFlash", 0)

    @property
    def inference_seconds(self) -> float:
        return self.total_cycles / self.core_clock_hz


@dataclass(frozen=True)
class ScheduledOp:
    """An operation of Vela's schedule and the TOSA operator that it computes.

    Attributes:
        name: Name of the output tensor, i.e. the output of the last fused operation.
        operator: Vela's name for the operation.
        op_cycles: Maximum of ``npu_cycles`` and each memory's access cycles.
        access_cycles: Access cycles, keyed by memory name.
        tosa_op: Index of the TOSA operator in its block, or None if Vela inserted the operation.
        command_offsets: Byte offsets of the last NPU_OP of each stripe, relative to the first command word, in ascending order.
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
    """A compiled TOSA graph.

    Attributes:
        command_stream: Command stream with its COP1 or COP2 header.
        constants: Contents of region 0.
        scratch_bytes: Size of region 1.
        scratch_fast_bytes: Size of region 2, the staging memory of Dedicated_Sram modes.
        inputs, outputs: Tensors in the order of the TOSA graph.
        passes: Stream passes that changed the command stream (``ethorch.vela.optimize``).
        before_passes: The model before the passes. None after verification, or if no pass changed the model.
    """

    command_stream: bytes = field(repr=False)
    constants: bytes = field(repr=False)
    scratch_bytes: int
    scratch_fast_bytes: int
    inputs: tuple[IoTensor, ...]
    outputs: tuple[IoTensor, ...]
    performance: Performance
    load_tables: Callable[[], Tables] = field(repr=False, compare=False)
    passes: tuple[PassEffect, ...] = ()
    before_passes: CompiledModel | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "load_tables": partial(dict, self.tables)}

    @cached_property
    def payload(self) -> DelegatePayload:
        """The payload for firmware. Raises PayloadError if the payload format cannot represent Vela's output."""
        return DelegatePayload(self.command_stream, self.constants, self.scratch_bytes, self.inputs, self.outputs)

    @cached_property
    def tables(self) -> Tables:
        """Vela's database: a dict from table name to column names and rows."""
        return self.load_tables()

    def rows(self) -> tuple[ScheduledOp, ...]:
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
        """Return the names of operations whose arena usage is at least ``share`` times the peak, and of adjacent operations."""
        header, rows = self.tables["perf"]
        name, usage = header.index("name"), header.index("staging_usage")
        alive = [int(row[usage]) for row in rows]
        at = [number for number, size in enumerate(alive) if size >= share * max(alive)]
        return frozenset(rows[number][name] for place in at for number in range(max(place - 1, 0), min(place + 2, len(rows))))

    def op_at(self, offset: int) -> ScheduledOp | None:
        """Return the operation of the command at a byte offset, or None after the last operation. See ``npu.source_map``."""
        return next((op for end, op in self._by_offset if end >= offset), None)

    @cached_property
    def _by_offset(self) -> list[tuple[int, ScheduledOp]]:
        ends = [(end, op) for op in self.rows() for end in op.command_offsets]
        return sorted(ends, key=lambda entry: entry[0])


def with_offsets(tables: Tables, moved: Callable[[int], int]) -> Tables:
    """Return a copy of Vela's database in which ``moved(offset)`` replaces each offset (in bytes from the first command word)."""
    if "queue" not in tables:
        return tables
    header, rows = tables["queue"]
    at = header.index("offset")
    return {**tables, "queue": (header, [[*row[:at], str(moved(int(row[at]))), *row[at + 1 :]] for row in rows])}


def _add_regions(performance: list[dict[str, str]], offsets: dict[str, list[int]]) -> None:
    ids = {row["id"] for row in performance}
    inside = sorted(offset for id, starts in offsets.items() if id not in ids for offset in starts)
    for position, row in enumerate(performance):
        if row["operator"] in _CONTROL_FLOW and row["id"] not in offsets:
            end = next((min(offsets[later["id"]]) for later in performance[position + 1 :] if later["id"] in offsets), math.inf)
            offsets[row["id"]] = [offset for offset in inside if offset < end]
            inside = [offset for offset in inside if offset >= end]

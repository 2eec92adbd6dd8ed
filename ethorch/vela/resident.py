"""Copy weights that are read several times per call to SRAM, e.g. those of a recurrent network.

Commands at the start of the stream copy the weights by DMA from region 0 to the end of region 1, and reset the DMA registers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ethorch.npu import Program, stream
from ethorch.npu.memory import Span
from ethorch.npu.prepared import PREPARE
from ethorch.npu.registers import Npu
from ethorch.npu.stream import Operation
from ethorch.npu.stream_writer import DMA_REGISTERS, Bits, operation, with_registers, write_register
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela.compiled_model import CompiledModel, ScheduledOp, Tables, with_offsets

_CONSTANTS, _SCRATCH = 0, 1  # regions (npu-reference 1.4)
_ALIGNMENT = 16  # alignment of constants and DMA transfers in bytes (npu-reference 7)
#: Span name -> registers that contain the region and base address of the span.
_REGISTERS = {
    **{name: ("WEIGHT_REGION", f"{name}_BASE") for name in ("WEIGHT", "WEIGHT1", "WEIGHT2", "WEIGHT3")},
    **{name: ("SCALE_REGION", f"{name}_BASE") for name in ("SCALE", "SCALE1")},
}

_Run = tuple[int, int]  # offset in region 0, size in bytes


@dataclass(frozen=True)
class _Reader:
    offset: int
    spans: tuple[Span, ...]
    state: Mapping[str, int]

    @property
    def run(self) -> _Run:
        first = min(span.base for span in self.spans)
        return first, max(span.base + span.size_bytes for span in self.spans) - first


def with_resident_weights(model: CompiledModel, spec: EthosUCompileSpec, most: int) -> CompiledModel:
    """Copy the most frequently read weights to SRAM if this reduces the estimated cycles.

    Args:
        most: Maximum growth of the scratch region in bytes.

    Returns:
        The changed model, or ``model`` if copies save no cycles, the scratch region is not in SRAM, or the stream has branches.
    """
    memory = spec.memory_system
    program = Program(model.command_stream, model.constants)
    if memory.constants_in_sram or memory.arena_area != "Sram" or model.scratch_fast_bytes or program.has_branches:
        return model
    if model.command_stream[:4] != stream.COP1:
        return model
    readers = _readers(program)
    rate = spec.bytes_per_cycle
    flash, sram = rate[memory.const_area], rate["Sram"]
    rows = {reader.offset: model.op_at(reader.offset) for reader in readers}
    chosen = _choose_runs(readers, rows, memory.const_area, flash, most)
    if not chosen:
        return model
    places, end = {}, -(-model.scratch_bytes // _ALIGNMENT) * _ALIGNMENT
    for first, size in chosen:
        places[first, size] = end
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    moved = [reader for reader in readers if reader.run in places]
    commands, offsets = _insert_copies(model.command_stream, program, moved, places)
    saved = _estimate_rows(moved, rows, memory.const_area, flash, sram)
    copied = math.ceil(sum(size for _, size in chosen) / flash)
    performance = model.performance
    total = performance.total_cycles - sum(row.op_cycles - now[0] for row, now in saved) + copied
    areas = dict(performance.memories)
    if "Sram" in areas:
        areas["Sram"] = replace(areas["Sram"], peak_bytes=areas["Sram"].peak_bytes + end - model.scratch_bytes)
    tables = _tables(model.tables, offsets, saved, memory.const_area, copied)
    return replace(
        model,
        command_stream=commands,
        scratch_bytes=end,
        performance=replace(performance, total_cycles=total, memories=areas),
        load_tables=lambda: tables,
    )


def _readers(program: Program) -> list[_Reader]:
    readers = []
    for op in program.operations():
        prepare = PREPARE.get((op.name, op.npu.family))
        if prepare is None or op.name == "NPU_OP_DMA_START":
            continue
        named = [span for span in prepare(op).reads if isinstance(span, Span) and span.name in _REGISTERS]
        for region in ("WEIGHT_REGION", "SCALE_REGION"):
            spans = tuple(span for span in named if _REGISTERS[span.name][0] == region and span.region == _CONSTANTS)
            if spans:
                names = {name for span in spans for name in _REGISTERS[span.name]}
                readers.append(_Reader(op.offset, spans, {name: op[name] for name in names}))
    return readers


def _choose_runs(
    readers: Sequence[_Reader], rows: Mapping[int, ScheduledOp | None], flash: str, rate: float, most: int
) -> list[_Run]:
    waits: dict[_Run, float] = defaultdict(float)
    for reader in readers:
        row = rows[reader.offset]
        if row is not None:
            waits[reader.run] += min(max(0, row.op_cycles - _without_flash(row, flash)), reader.run[1] / rate)
    gains = {run: wait - run[1] / rate for run, wait in waits.items() if not run[0] % _ALIGNMENT and not run[1] % _ALIGNMENT}
    chosen: list[_Run] = []
    for run in sorted(gains, key=lambda run: -gains[run] / run[1]):
        apart = all(run[0] + run[1] <= start or start + size <= run[0] for start, size in chosen)
        if gains[run] > 0 and apart and run[1] <= most:
            chosen.append(run)
            most -= run[1]
    return chosen


def _without_flash(row: ScheduledOp, flash: str) -> int:
    return max([row.npu_cycles, *(cycles for name, cycles in row.access_cycles.items() if name != flash)])


def _estimate_rows(
    moved: Iterable[_Reader], rows: Mapping[int, ScheduledOp | None], flash: str, flash_rate: float, sram_rate: float
) -> list[tuple[ScheduledOp, tuple[int, int, int]]]:
    read: dict[int, tuple[ScheduledOp, int]] = {}
    for reader in moved:
        row = rows[reader.offset]
        if row is not None:
            before = read.get(id(row), (row, 0))[1]
            read[id(row)] = row, before + sum(span.size_bytes for span in reader.spans)
    estimates = []
    for row, size in read.values():
        in_flash = max(0, row.access_cycles.get(flash, 0) - math.ceil(size / flash_rate))
        in_sram = row.access_cycles.get("Sram", 0) + math.ceil(size / sram_rate)
        others = [cycles for name, cycles in row.access_cycles.items() if name not in (flash, "Sram")]
        estimates.append((row, (max([row.npu_cycles, in_flash, in_sram, *others]), in_flash, in_sram)))
    return estimates


def _insert_copies(
    payload: bytes, program: Program, moved: Sequence[_Reader], places: Mapping[_Run, int]
) -> tuple[bytes, dict[int, int]]:
    settings: dict[int, dict[str, int | Bits]] = defaultdict(dict)
    for reader in moved:
        shift = places[reader.run] - reader.run[0]
        for span in reader.spans:
            region, base = _REGISTERS[span.name]
            settings[reader.offset] |= {region: _SCRATCH, base: span.base + shift}
    return with_registers(payload, program, settings, _copies(program.config, places))


def _copies(npu: Npu, places: Mapping[_Run, int]) -> list[int]:
    words: list[int] = []
    for (first, size), place in places.items():
        values = (_CONSTANTS, _SCRATCH, first, place, size)
        for name, value in zip(DMA_REGISTERS, values, strict=True):
            words += write_register(npu, name, value)
        words += [*operation(npu, "NPU_OP_DMA_START"), *operation(npu, "NPU_OP_DMA_WAIT")]
    for name in DMA_REGISTERS:
        words += write_register(npu, name, 0)
    return words


def _tables(
    before: Tables, offsets: Mapping[int, int], saved: Sequence[tuple[ScheduledOp, tuple[int, int, int]]], flash: str, copied: int
) -> Tables:
    tables = dict(with_offsets(before, offsets.__getitem__))
    header, rows = tables["perf"]
    names = {row.name: now for row, now in saved}
    updated = []
    for number, row in enumerate(rows):
        cells = dict(zip(header, row, strict=True))
        if cells["name"] in names:
            total, in_flash, in_sram = names[cells["name"]]
            cells |= {"op_cycles": str(total), f"{flash}_ac": str(in_flash), "Sram_ac": str(in_sram)}
        if number == 0:
            cells["op_cycles"] = str(int(cells["op_cycles"]) + copied)
        updated.append([cells[name] for name in header])
    tables["perf"] = header, updated
    return tables


def is_unchanged(before: Iterable[Operation], after: Iterable[Operation]) -> bool:
    """Return True if the operations differ only in weight addresses. DMA copies at the start of ``after`` are ignored."""
    places = {name for pair in _REGISTERS.values() for name in pair}
    old, new = list(before), list(after)
    return all(
        a.name == b.name and a.values == b.values and all(b[key] == value for key, value in a.state.items() if key not in places)
        for a, b in zip(old, new[len(new) - len(old) :], strict=True)
    )

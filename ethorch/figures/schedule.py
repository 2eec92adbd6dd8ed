"""Vela's schedule and memory plan for a delegate, with the operators, modules and source lines of the user's model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ethorch.figures.layer import COMPUTE, MEMORY_KEYS, NPU, TRANSPOSES, Layer
from ethorch.tosa.ir import NOWHERE, Graph, Op, Origin
from ethorch.tosa.serialize import serialize_with_positions
from ethorch.vela.compiled_model import CompiledModel, ScheduledOp
from ethorch.vela.lowered import Lowered

_KINDS = ("FeatureMap", "Weights", "Scales", "Lut")
_QUANTIZE = ("quantized_decomposed.",)  # operators inserted by the quantizer

Row = Mapping[str, str]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor in Vela's memory plan for one delegate.

    Attributes:
        name: Name of a TOSA tensor or of a Vela buffer.
        address, size_bytes: Location within the region.
        first, last: Positions of the first and last operation during which the tensor is alive.
        begins, ends: First and last time step of the lifetime. Vela uses two time steps per operation.
        dtype, layout: Vela's names for the dtype and layout.
    """

    name: str
    memory: str
    address: int
    size_bytes: int
    first: int
    last: int
    begins: int
    ends: int
    dtype: str
    layout: str
    origin: Origin


class Schedule:
    """Vela's debug database for one delegate, joined with the delegate's TOSA graph."""

    def __init__(self, lowered: Lowered):
        self.compiled: CompiledModel = lowered.compiled
        self.rows = self.compiled.rows()
        self._graph: Graph = lowered.graph
        self._table = self.compiled.tables
        self._ids = [row["id"] for row in self._read("perf")]
        self._debug = {row["id"]: row for row in self._read("perf_debug")}
        self._staging = {row["id"]: _parse_int(row.get("staging_usage")) for row in self._read("perf")}
        positions = {id: number for number, id in enumerate(self._ids)}
        self._fused = {
            positions[row["id"]]: positions[row["group_id"]]
            for row in self._read("group")
            if row["id"] in positions and row["group_id"] in positions
        }
        _, offsets = serialize_with_positions(self._graph)
        self._op_at = dict(zip(offsets, self._graph.ops, strict=True))
        self._writers = {value.name: op for region in self._graph.regions() for op in region.ops for value in op.results}

    def _read(self, name: str) -> list[Row]:
        header, rows = self._table.get(name, ([], []))
        return [dict(zip(header, row, strict=False)) for row in rows]

    # --- layers -------------------------------------------------------------------------------------------------------

    def layers(self, first: int, delegate: int) -> list[Layer]:
        """Return one layer for each operation. Layer numbers start at ``first``."""
        return [self._layer(number, row, first, delegate) for number, row in enumerate(self.rows)]

    def _layer(self, number: int, row: ScheduledOp, first: int, delegate: int) -> Layer:
        debug = self._debug.get(self._ids[number], {})
        merged = self._trace_operators(row)
        origin = next((op.result.origin for op in merged if op.result.origin.module), None)
        origin = origin or next((op.result.origin for op in merged if op.result.origin != NOWHERE), NOWHERE)
        fused = self._fused.get(number)
        layer = Layer(
            index=first + number,
            name=row.name,
            where=NPU,
            delegate=delegate,
            operator=row.operator,
            operators=pytorch_operators(op.result.origin for op in merged),
            tosa_operators=tuple(op.name for op in merged),
            module=origin.module,
            source=origin.source,
            cycles=row.op_cycles,
            npu_cycles=row.npu_cycles,
            macs=row.macs,
            bound=_find_bound(row),
            access_cycles={name: cycles for name, cycles in row.access_cycles.items() if cycles and name in MEMORY_KEYS},
            transfer_cycles=_parse_int(debug.get("weight_transfer_cycles")),
            staging_bytes=self._staging.get(self._ids[number]),
            fused_into=None if fused is None else first + fused,
        )
        if not debug:
            return layer
        return replace(
            layer,
            read_bytes=_sum_traffic(debug, "read", row.access_cycles),
            written_bytes=_sum_traffic(debug, "write", row.access_cycles),
            ifm_shapes=tuple(shape for prefix in ("ifm", "ifm2") if any(shape := _read_shape(debug, prefix))),
            ofm_shape=_read_shape(debug, "ofm"),
        )

    def _trace_operators(self, row: ScheduledOp) -> list[Op]:
        begin = None if row.tosa_op is None else self._op_at.get(row.tosa_op)
        end = self._writers.get(row.name)
        if begin is None or end is None or begin is end:
            return [op for op in (begin or end,) if op is not None]
        chain = [end]
        while chain[-1] is not begin:
            operand_writers = [self._writers.get(value.name) for value in chain[-1].operands if not value.is_const]
            writers = [op for op in operand_writers if op is not None]
            if len(writers) != 1 or len(chain) > len(self._writers):
                return [begin]
            chain.append(writers[0])
        return chain[::-1]

    # --- memory -------------------------------------------------------------------------------------------------------

    def tensors(self) -> list[PlannedTensor]:
        """Return the tensors and buffers that have an address, in the order of Vela's table."""
        times = [_parse_int(self._debug.get(id, {}).get("time_index")) for id in self._ids]
        planned = []
        for row in self._read("tensors"):
            start, end = int(row["start_time"]), int(row["end_time"])
            first = max((number for number, time in enumerate(times) if time <= start), default=0)
            while first and times[first - 1] == times[first]:
                first -= 1  # fused operations have the same time
            last = max((number for number, time in enumerate(times) if time <= end), default=first)
            address = int(row["start_address"], 0)
            planned.append(
                PlannedTensor(
                    row["name"],
                    row["memory"],
                    address,
                    int(row["end_address"], 0) - address,
                    first,
                    max(first, last),
                    start,
                    end,
                    row["data_type"],
                    row["format"],
                    self._origin_of(row, first, next((number for number, time in enumerate(times) if time == times[last]), last)),
                )
            )
        return planned

    def _origin_of(self, row: Row, writer: int, reader: int) -> Origin:
        # A weight buffer has the origin of the operation that reads it. Other tensors have the origin of the one that writes them.
        op = self._writers.get(row["name"]) or self._writers.get(row["name"].removesuffix("_copy"))
        if op is not None:
            return op.result.origin
        for value in self._graph.inputs:
            if value.name == row["name"]:
                return value.origin
        merged = self._trace_operators(self.rows[reader if row.get("usage") == "OpBuffering" else writer])
        return merged[0].result.origin if merged else NOWHERE


def pytorch_operators(origins: Iterable[Origin]) -> tuple[str, ...]:
    """Return the distinct operators in ``origins``. Omit quantize and dequantize operators if there are other operators."""
    targets = list(dict.fromkeys(origin.target for origin in origins if "." in origin.target))  # excludes placeholders
    users = [target for target in targets if not target.startswith(_QUANTIZE)]
    return tuple(users or targets)


def _find_bound(row: ScheduledOp) -> str:
    if not row.op_cycles:
        return ""
    if row.operator == "Transpose":
        return TRANSPOSES
    memories = {name: cycles for name, cycles in row.access_cycles.items() if name in MEMORY_KEYS}
    slowest = max(memories, key=memories.__getitem__, default="")
    return slowest if slowest and memories[slowest] > row.npu_cycles else COMPUTE


def _sum_traffic(debug: Row, way: str, memories: Mapping[str, Any]) -> dict[str, int]:
    totals = {
        name: sum(_parse_int(debug.get(f"{name}{kind}_{way}")) for kind in _KINDS) for name in memories if name in MEMORY_KEYS
    }
    return {name: size for name, size in totals.items() if size}


def _read_shape(debug: Row, prefix: str) -> tuple[int, ...]:
    return tuple(_parse_int(debug.get(f"{prefix}_shape_{axis}")) for axis in "nhwc")


def _parse_int(text: str | None) -> int:
    return int(text) if text else 0

"""Change commands to read NCHW inputs as brick-format feature maps with adjusted strides (``ethorch.lower.rewrite.planes``)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ethorch.formats.payload import IoTensor
from ethorch.lower.rewrite.planes import Planes
from ethorch.npu import Program, stream
from ethorch.npu.stream import Operation
from ethorch.npu.stream_writer import DMA_REGISTERS, Bits, operation, with_registers
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tuning import BRICK
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize_with_positions
from ethorch.vela.compiled_model import CompiledModel, ScheduledOp, Tables, with_offsets

#: Operations that do not read feature maps.
_NO_KERNELS = ("NPU_OP_DMA_START", "NPU_OP_DMA_WAIT", "NPU_OP_KERNEL_WAIT", "NPU_OP_STOP")
_NHWC, _BRICKS = 0, 1 << 6  # IFM_PRECISION.format of NHWC, and the register parameter of the brick format (npu-reference 2.3)


@dataclass(frozen=True)
class _Map:
    region: int
    offset: int
    copies: tuple[Operation, ...] = ()


def with_planes(
    model: CompiledModel, planar: Graph, reference: Graph, planes: Sequence[Planes], spec: EthosUCompileSpec
) -> CompiledModel | None:
    """Return a copy of ``model`` that reads inputs in NCHW layout, or None if the commands have an unexpected form.

    Pooling operations that copy an input are replaced with DMA transfers.

    Args:
        model: Model compiled from ``planar``.
        planar: Graph with convolutions that convert NCHW inputs.
        reference: Graph with TRANSPOSEs in place of these convolutions. The tables of the returned model contain the operator
            indices of this graph.
        planes: Inputs to read in NCHW layout.
    """
    if model.command_stream[:4] != stream.COP1:
        return None
    program = Program(model.command_stream, model.constants)
    if program.has_branches:
        return None
    settings: dict[int, Mapping[str, int | Bits]] = {}
    instead: dict[int, list[int]] = {}
    copied: dict[str, int] = {}
    turning: set[str] = set()
    for each, rows in zip(planes, _find_rows(model, planar, planes), strict=True):
        source = model.inputs[each.input]
        readers = [op for op in program.operations() if op.name not in _NO_KERNELS and model.op_at(op.offset) in rows]
        where = _map_of(readers, source)
        seen = np.zeros(each.rows * each.columns, bool)
        registers = None if where is None else [_in_planes(op, where, each, source.element_size, seen) for op in readers]
        if where is None or registers is None or None in registers[len(where.copies) :] or not seen.all():
            return None
        turning |= {row.name for row in rows}
        settings |= {op.offset: values for op, values in zip(readers, registers, strict=True) if values is not None}
        for number, op in enumerate(where.copies):
            row = model.op_at(op.offset)
            assert row is not None
            copied[row.name] = source.nbytes
            instead[op.offset] = [] if number else _dma(program)
            if not number:
                values = source.region, where.region, source.offset, where.offset, source.nbytes
                settings[op.offset] = dict(zip(DMA_REGISTERS, values, strict=True))
    commands, offsets = with_registers(model.command_stream, program, settings, instead=instead)
    tables = with_offsets(_of_reference(model.tables, planar, reference, planes), offsets.__getitem__)
    tables, saved = _estimate(tables, copied, turning, spec)
    before = model.performance
    performance = replace(
        before,
        npu_cycles=before.npu_cycles - saved["npu_cycles"],
        total_cycles=before.total_cycles - saved["op_cycles"],
        mac_count=before.mac_count - saved["mac_count"],
    )
    return replace(model, command_stream=commands, performance=performance, load_tables=lambda: tables)


def _dma(program: Program) -> list[int]:
    names = ("NPU_OP_KERNEL_WAIT", "NPU_OP_DMA_START", "NPU_OP_DMA_WAIT")
    return [word for name in names for word in operation(program.config, name)]


def _map_of(readers: Sequence[Operation], source: IoTensor) -> _Map | None:
    copies = [op for op in readers if op.name == "NPU_OP_POOL"]
    if readers[: len(copies)] != copies or any(op.name != "NPU_OP_CONV" for op in readers[len(copies) :]):
        return None
    if not copies:
        return _Map(source.region, source.offset)
    region, offset = copies[0]["OFM_REGION"], min(op["OFM_BASE0"] for op in copies)
    size = 0
    for op in copies:
        moves = (op["OFM_REGION"], op["OFM_BASE0"] - offset) == (region, op["IFM_BASE0"] - source.offset)
        alike = all(op[f"IFM_{key}"] == op[f"OFM_{key}"] for key in ("STRIDE_Y", "STRIDE_X", "DEPTH", "PRECISION.format"))
        if op["IFM_REGION"] != source.region or not moves or not alike:
            return None
        size += op["OFM_HEIGHT"] * op["OFM_WIDTH"] * op["OFM_DEPTH"] * source.element_size
    return _Map(region, offset, tuple(copies)) if size == source.nbytes and offset % BRICK == 0 else None


def _estimate(
    tables: Tables, copied: Mapping[str, int], turning: Collection[str], spec: EthosUCompileSpec
) -> tuple[Tables, Counter[str]]:
    header, rows = tables["perf"]
    slow = spec.memory_system.arena_area
    saved, estimated = Counter[str](), []
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        changes: dict[str, int] = {}
        if cells["name"] in copied:
            cycles = math.ceil(copied[cells["name"]] / spec.bytes_per_cycle[slow])
            changes |= {"op_cycles": cycles, "npu_cycles": 0, f"{slow}_ac": cycles}
        if cells["name"] in turning:
            changes["mac_count"] = 0
        saved.update({name: int(cells[name] or 0) - count for name, count in changes.items()})
        cells |= {name: str(count) for name, count in changes.items()}
        estimated.append([cells[name] for name in header])
    return {**tables, "perf": (header, estimated)}, saved


def _find_rows(model: CompiledModel, planar: Graph, planes: Sequence[Planes]) -> list[list[ScheduledOp]]:
    _, positions = serialize_with_positions(planar)
    index = {op.result.name: position for op, position in zip(planar.ops, positions, strict=True)}
    operators = [{index[name] for name in each.results} for each in planes]
    return [[row for row in model.rows() if row.tosa_op in indices] for indices in operators]


def _in_planes(
    op: Operation, where: _Map, planes: Planes, element_size: int, seen: npt.NDArray[np.bool_]
) -> Mapping[str, int | Bits] | None:
    brick = BRICK * element_size
    pixel, plane = brick * planes.count, brick * planes.rows * planes.columns
    at, inside = divmod(op["IFM_BASE0"] - where.offset, pixel)
    strides = op["IFM_STRIDE_Y"], op["IFM_STRIDE_X"]
    is_aligned = all(stride % pixel == 0 for stride in strides) and inside % brick == 0 and op["IFM_DEPTH"] % BRICK == 0
    if op["IFM_REGION"] != where.region or op["IFM_PRECISION.format"] != _NHWC or not is_aligned:
        return None
    high, wide = strides[0] // pixel, strides[1] // pixel
    y, x = np.ogrid[: op["OFM_HEIGHT"], : op["OFM_WIDTH"]]
    places = at + y * high + x * wide
    if places.min() < 0 or places.max() >= seen.size or op["IFM_HEIGHT0"] < len(y) or op["IFM_WIDTH0"] < x.shape[1]:
        return None
    seen[places] = True
    return {
        "IFM_PRECISION": Bits(_BRICKS),
        "IFM_BASE0": where.offset + at * brick + inside // brick * plane,
        "IFM_STRIDE_Y": high * brick,
        "IFM_STRIDE_X": wide * brick,
        "IFM_STRIDE_C": plane,
    }


def _of_reference(tables: Tables, planar: Graph, reference: Graph, planes: Sequence[Planes]) -> Tables:
    if "source" not in tables:
        return tables
    _, before = serialize_with_positions(planar)
    _, after = serialize_with_positions(reference)
    now = {op.result.name: position for op, position in zip(reference.ops, after, strict=True)}
    turned = {name: each.name for each in planes for name in each.results}
    moved = {
        str(position): str(now[turned.get(op.result.name, op.result.name)]) for op, position in zip(planar.ops, before, strict=True)
    }
    header, rows = tables["source"]
    key = header.index("ext_key")
    return {**tables, "source": (header, [[*row[:key], moved.get(row[key], row[key]), *row[key + 1 :]] for row in rows])}

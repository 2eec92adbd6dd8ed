"""Command streams as text and as plain data, with the decoded registers of each operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ethorch.npu import registers, stream
from ethorch.npu.feature_map import STORAGE_CHAINED, STORAGE_NONE, FeatureMap
from ethorch.npu.memory import INTERNAL, Span
from ethorch.npu.prepared import PREPARE, Prepared
from ethorch.npu.program import Program
from ethorch.npu.source_map import Source, Sources
from ethorch.npu.stream import Operation, kernel_stride
from ethorch.support.errors import MachineFault

WINDOWS = ("NPU_OP_CONV", "NPU_OP_DEPTHWISE", "NPU_OP_POOL")
COMPUTING = (*WINDOWS, "NPU_OP_ELEMENTWISE", "NPU_OP_RESIZE")
MARGIN = " " * 9


@dataclass(frozen=True)
class Line:
    """One decoded operation.

    Attributes:
        tensors: Description of each tensor, keyed by its role: OFM, IFM, WEIGHT, ...
        details: Description of each remaining property, keyed by its name: kernel, scale, activation, ...
        registers: Parameters and registers of the operation (see ``stream.describe``).
        fault: Reason why the operation cannot run.
    """

    command: int
    offset: int
    operation: str
    source: Source | None
    tensors: dict[str, str]
    details: dict[str, str]
    registers: dict[str, str]
    fault: str = ""


def lines(program: Program, sources: Sources | None = None) -> Iterator[Line]:
    """Yield a ``Line`` for each operation in stream order."""
    for op in program.operations():
        tensors: dict[str, str] = {}
        details: dict[str, str] = {}
        fault = ""
        prepare = PREPARE.get((op.name, op.npu.family))
        try:
            if prepare is not None:
                prepared = prepare(op)
                tensors = _tensors(prepared)
                details = _details(op, prepared)
        except MachineFault as problem:
            fault = str(problem)
        source = sources.at(op.offset) if sources else None
        yield Line(op.index, op.offset, op.title, source, tensors, details, stream.describe(op), fault)


def rows(program: Program, sources: Sources | None = None) -> list[dict[str, Any]]:
    """Return one dict per ``Line`` with its non-empty attributes."""
    result = []
    for line in lines(program, sources):
        row = {k: v for k, v in vars(line).items() if k != "source" and (v or k in ("command", "offset"))}
        if line.source is not None:
            row["source"] = vars(line.source)
        result.append(row)
    return result


def text(program: Program, sources: Sources | None = None) -> str:
    """Format a ``Program`` as text with a heading for each operator."""
    header = program.header
    out = [f"; {header.npu.name}, {len(program.commands)} commands, {header.stop - header.start} bytes"]
    before: Source | None = None
    for line in lines(program, sources):
        if line.source is not None and line.source is not before:
            out += ["", f"; {line.source}, {line.source.op_cycles} cycles estimated by Vela"]
        before = line.source or before
        out += _text(line)
    return "\n".join(out) + "\n"


def _text(line: Line) -> Iterator[str]:
    name = line.operation.removeprefix("NPU_OP_")
    plain = [] if line.tensors or line.details or line.fault else line.registers.values()
    yield f"{line.offset:06x}   {name} {' '.join(plain)}".rstrip()
    for key, value in line.tensors.items():
        yield f"{MARGIN}  {key:<8} {value}"
    if line.details:
        yield f"{MARGIN}  " + "; ".join(f"{k} {v}" for k, v in line.details.items())
    if line.fault:
        yield f"{MARGIN}  cannot run: {line.fault}"


def _tensors(prepared: Prepared) -> dict[str, str]:
    return {a.name: _span(a) if isinstance(a, Span) else _box(a) for a in (*prepared.writes, *prepared.reads)}


def _span(span: Span) -> str:
    return f"{_place(span.region, span.base)}, {span.size_bytes} bytes"


def _place(region: int, address: int) -> str:
    return f"{'internal' if region == INTERNAL else region}:{address:#x}"


def _box(fm: FeatureMap) -> str:
    kind = f"{fm.dtype.name}[{fm.height},{fm.width},{fm.depth}]"
    zero_point = f", zero point {fm.zero_point}" if fm.zero_point else ""
    if fm.storage == STORAGE_CHAINED:
        return f"{kind} in chain buffer {fm.region}{zero_point}"
    if fm.storage == STORAGE_NONE:
        return f"{kind} without memory{zero_point}"
    places = ", ".join(_place(fm.region, t.base) + (f" from row {t.y} column {t.x}" if t.y or t.x else "") for t in fm.tiles)
    y, x, c = fm.strides
    strides = f"strides {y},{x}" + (f",{c}" if fm.bricks else "")
    return f"{kind} {'NHCWB16' if fm.bricks else 'NHWC'} at {places}, {strides}{zero_point}"


def _value_name(op: Operation, key: str) -> str:
    return registers.value_names(op.npu.family)[key][op[key]]


def _details(op: Operation, prepared: Prepared) -> dict[str, str]:
    if op.name not in COMPUTING:
        return {}
    details: dict[str, str] = {}
    if op.name in WINDOWS:
        details |= _window(op)
    if op.name in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE"):
        details["weights"] = _value_name(op, "KERNEL_STRIDE.weight_order").lower().replace("_", " ")
        if op.state.get("WEIGHT_FORMAT.decoder"):
            details["weights"] += ", fast"
        if op.state.get("WEIGHT_FORMAT.sparsity"):
            details["weights"] += ", 2:4 sparse"
    if op.name == "NPU_OP_ELEMENTWISE":
        details |= _operands(op)
    if op.name == "NPU_OP_RESIZE":
        details["scale"] = f"1/{op['RESIZE_Y_SCALE_N']} x 1/{op['RESIZE_X_SCALE_N']}"
        details["offset"] = f"{op['RESIZE_Y_OFFSET']},{op['RESIZE_X_OFFSET']}"
    details |= _output(op)
    if prepared.macs:
        details["MACs"] = str(prepared.macs)
    return details


def _window(op: Operation) -> dict[str, str]:
    dilation = op["KERNEL_STRIDE.dilation_y"], op["KERNEL_STRIDE.dilation_x"]
    size = [(op[f"KERNEL_{a}"] - 1) // d + 1 for a, d in zip(("HEIGHT", "WIDTH"), dilation, strict=True)]
    details = {"kernel": f"{size[0]}x{size[1]}"}
    if kernel_stride(op) != (1, 1):
        details["stride"] = "{}x{}".format(*kernel_stride(op))
    if dilation != (1, 1):
        details["dilation"] = "{}x{}".format(*dilation)
    sides = [op[f"IFM_PAD_{side}"] for side in ("TOP", "LEFT", "BOTTOM", "RIGHT")]
    if any(sides):
        details["pad"] = "top {} left {} bottom {} right {}".format(*sides)
    if op["IFM_UPSCALE"]:
        details["upscale"] = _value_name(op, "IFM_UPSCALE").lower()
    return details


def _operands(op: Operation) -> dict[str, str]:
    details: dict[str, str] = {}
    for key in ("OPA_SCALE", "OPB_SCALE", "IFM_SCALE", "IFM2_SCALE"):
        multiplier = op.state.get(f"{key}.scale", op.state.get(key, 0))
        shift = op.state.get(f"{key}.shift", 0)
        if multiplier and (multiplier, shift) != (1, 0):
            details[key] = f"{multiplier} >> {shift}" if shift else str(multiplier)
    if op.state.get("IFM2_BROADCAST.constant"):
        details["IFM2"] = f"constant {op['IFM2_SCALAR']}"
    for prefix in ("IFM", "IFM2"):
        name = registers.BROADCAST_U85.get(op.state.get(f"{prefix}_BROADCAST", 0), "")
        if name == "SCALAR":
            details[prefix] = f"scalar {op['OP_SCALAR']}"
    if op.state.get("IFM2_BROADCAST.operand_order"):
        details["order"] = "IFM2 first"
    return details


def _output(op: Operation) -> dict[str, str]:
    details: dict[str, str] = {}
    rounding = next(_value_name(op, k) for k in ("OFM_PRECISION.rounding", "OFM_SCALE.rounding") if k in op.state)
    if op["OFM_PRECISION.scale_mode"]:
        details["scale"] = f"{op['OFM_SCALE.scale']} >> {op['OFM_SCALE.shift']} {rounding.lower()}"
    else:
        details["scale"] = f"per channel, {rounding.lower()}"
    signed = op["OFM_PRECISION.signed"]
    low, high = (v - 0x10000 if signed and v & 0x8000 else v for v in (op["ACTIVATION_MIN"], op["ACTIVATION_MAX"]))
    details["clamp"] = f"{low}..{high}"
    if op["ACTIVATION.function"]:
        table = f" {op['ACTIVATION.table']}" if "ACTIVATION.table" in op.state else ""
        details["activation"] = _value_name(op, "ACTIVATION.function") + table
    for key in ("OFM_PRECISION.transpose", "OFM_PRECISION.reverse", "ACC_FORMAT.input", "ACC_FORMAT.output"):
        if op.state.get(key):
            details[key.partition(".")[2] if "OFM" in key else f"accumulator {key[11:]}"] = _value_name(op, key)
    details["block"] = f"{op['OFM_BLK_HEIGHT']}x{op['OFM_BLK_WIDTH']}x{op['OFM_BLK_DEPTH']}"
    return details

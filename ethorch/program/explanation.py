"""Placement, cost, reason and remedy of each operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ethorch.figures import Layer
from ethorch.figures.layer import CPU
from ethorch.figures.persistent_buffers import is_kept, reads_in_place
from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import Method, Value
from ethorch.lower.partition_report import PartitionReport, Refusal, refusal_texts, summarize_placement, writer_text
from ethorch.lower.replacements import BETWEEN
from ethorch.lower.state_buffer import StateBuffer
from ethorch.support import tables
from ethorch.support.errors import Reason, SpecError
from ethorch.support.rendering import as_html, as_text
from ethorch.support.wording import count_noun, did_you_mean

if TYPE_CHECKING:
    from rich.console import RenderableType

AT_THE_ENDS = Reason(
    "io.floats",
    "the inputs and outputs are float32, so the CPU quantizes or dequantizes them in each call",
    'Use io="int8" (--io int8; int16 for scheme a16w8), and quantized values in firmware.',
)
BETWEEN_SIDES = Reason("io.between", "it converts values between a float operator on the CPU and the NPU", BETWEEN)
STATE_COPIED = Reason(
    "state.copied",
    "an NPU operation reads old and new bytes of the buffer",
    "The results are equal; the copy costs half a CPU cycle per byte.",
)
STATE_AMONG_TENSORS = Reason(
    "state.among_tensors",
    "ExecuTorch planned the buffer among tensors that a call writes, because ethorch did not write the program",
    "Remove or delegate the operators that ethorch's writer refused (see `explain`). The buffer then has its own memory.",
)


@dataclass(frozen=True)
class Operator:
    """One row.

    Attributes:
        operator: PyTorch operators; for a file, the NPU operation or ExecuTorch kernel.
        where: ``NPU`` or ``CPU``.
        delegate: Number of the delegate; None on the CPU.
        module, source: Path of the module, ``file.py:line``; empty if unknown.
        cycles: Estimate; None for a file, or for an operator without a layer.
        share: Share of the program's cycles, 0 to 1.
        bound: Resource that limits the layer's speed.
        id, reason, way_out: Identifier, reason and remedy of an operator on the CPU.
    """

    operator: str
    where: str
    delegate: int | None
    module: str
    source: str
    cycles: int | None = None
    share: float | None = None
    bound: str = ""
    id: str = ""
    reason: str = ""
    way_out: str = ""


@dataclass(frozen=True)
class State:
    """A buffer that the model changes.

    Attributes:
        name: Qualified name in the model.
        dtype, shape: Type and shape in the program.
        size_bytes: RAM, in addition to copies in the scratch region.
        scale, zero_point: Quantization parameters; None for float buffers and for files.
        where: Processors that read and write it: ``NPU 0``, ``CPU``.
        to_npu_bytes, from_npu_bytes: Bytes that ExecuTorch's delegate copies in each call.
        id, reason, way_out: Identifier, reason and remedy of a buffer that stays in float or is always copied.
        in_place: Whether the NPU reads it in place, in generated firmware and on this computer.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    scale: float | None
    zero_point: int | None
    where: tuple[str, ...]
    to_npu_bytes: int
    from_npu_bytes: int
    id: str = ""
    reason: str = ""
    way_out: str = ""
    in_place: bool = False


@dataclass(frozen=True)
class Explanation:
    """Operators and mutable buffers of a program.

    Attributes:
        operators: Operators in execution order; refused ones follow.
        placement: Count of the operators on the NPU, as in ``print(program)``; empty for a file.
        writer: Writer of the program, and the reason if it is ExecuTorch; None for a file.
        counts: Rows of the program on the NPU and on the CPU, without selection; None: those of ``operators``.
    """

    target: str
    operators: tuple[Operator, ...]
    states: tuple[State, ...] = ()
    placement: str = ""
    writer: dict[str, str] | None = None
    counts: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data by attribute name."""
        return {
            "target": self.target,
            "operators": [asdict(operator) for operator in self.operators],
            "states": [asdict(state) for state in self.states],
            "writer": self.writer,
        }

    def rich(self) -> RenderableType:
        """Return a Rich table, and a paragraph for each reason."""
        from rich.console import Group

        table = tables.table()
        for name, justify in (("where", "left"), ("operator", "left"), ("module", "left"), ("source", "left")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for name in ("cycles", "share"):
            table.add_column(name, justify="right")
        table.add_column("bound by")
        listed = _list_once(self.operators)
        for row in listed:
            where = row.where if row.delegate is None else f"{row.where} {row.delegate}"
            share = "" if row.share is None else f"{row.share:.1%}"
            cycles = "" if row.cycles is None else f"{row.cycles:,}"
            table.add_row(where, row.operator, row.module, row.source, cycles, share, row.bound)
        lines = refusal_texts(asdict(row) for row in self.operators if row.reason)
        npu, cpu = self.counts or _count_rows(self.operators)
        rows = f"{count_noun(npu, 'operation')} on the NPU, {count_noun(cpu, 'operator')} on the CPU"
        selected = f"{len(listed)} of {npu + cpu} (" if len(listed) < npu + cpu else ""
        last = (
            f"Rows: {selected}{rows}, including quantize and dequantize{')' if selected else ''}."
            if self.operators
            else "No rows: all selected operators are on the NPU."
        )
        last += f" Model: {self.placement}." if self.placement else ""
        lines_of_states = ["", "State between calls:", self._states()] if self.states else []
        lines_of_states += [_IN_PLACE] if any(state.in_place for state in self.states) else []
        for state in self.states:
            lines_of_states += [f"{state.name}: {state.reason} [{state.id}] {state.way_out}"] if state.reason else []
        reason = writer_text(self.writer) if self.writer else ""
        lines_of_states += ["", f"Written by ExecuTorch: {reason}"] if reason else []
        return Group(table, *(["", "On the CPU:"] if lines else []), *lines, *lines_of_states, "", last)

    def _states(self) -> RenderableType:
        table = tables.table()
        for name in ("buffer", "type", "used by"):
            table.add_column(name)
        for name in ("scale", "RAM bytes", "bytes to the NPU", "bytes from the NPU"):
            table.add_column(name, justify="right")
        table.add_column("read")
        for state in self.states:
            scale = "" if state.scale is None else f"{state.scale:.4g}"
            numbers = (f"{n:,}" for n in (state.size_bytes, state.to_npu_bytes, state.from_npu_bytes))
            read = ("in place" if state.in_place else "copied") if state.to_npu_bytes else ""
            table.add_row(state.name, f"{state.dtype}{list(state.shape)}", ", ".join(state.where), scale, *numbers, read)
        return table

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())


def explanation(
    target: str,
    layers: Sequence[Layer],
    partition: PartitionReport | None,
    operator: str | None = None,
    cpu_only: bool = False,
    states: Sequence[State] = (),
) -> Explanation:
    """Return the rows of the layers and of the partition.

    Args:
        partition: None for a file, which has no reasons.
        operator: Substring of the operator's name.
        cpu_only: Whether to return CPU operators only.
        states: Result of ``states_of``, omitted if ``operator`` is set.

    Raises:
        SpecError: No operator matches.
    """
    rows = [
        Operator(
            ", ".join(layer.operators) or layer.operator,
            layer.where,
            layer.delegate,
            layer.module,
            layer.source,
            layer.cycles,
            layer.share,
            layer.bound,
        )
        for layer in layers
    ]
    rows = [_with_conversion(row, layer) for row, layer in zip(rows, layers, strict=True)]
    for refusal in [] if partition is None else [*partition.refusals, *partition.without_kernel]:
        _add(rows, refusal)
    if operator is not None and not any(operator in row.operator for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row.operator.split(", ")))
        meant = did_you_mean(operator, [part for name in names for part in (name, *name.split(".")[1:2])])
        raise SpecError(f"no operator name contains {operator!r}.{meant} Operators: {', '.join(names) or 'none'}.")
    selected = [row for row in rows if (operator is None or operator in row.operator) and (row.where == "CPU" or not cpu_only)]
    counts = (
        ""
        if partition is None
        else summarize_placement(partition.npu_operators, len(partition.refusals), target, len(partition.delegated))
    )
    writer = None if partition is None else partition.writer
    return Explanation(target, tuple(selected), tuple(states) if operator is None else (), counts, writer, _count_rows(rows))


def _list_once(rows: Sequence[Operator]) -> list[Operator]:
    """Return the rows without those that only add a second reason to an operator."""
    listed: dict[tuple[str, str, str], Operator] = {}
    selected = []
    for row in rows:
        key = (row.operator, row.module, row.source)
        if row.where == CPU and row.cycles is None and row.reason and key in listed:
            continue
        if row.where == CPU:
            listed[key] = row
        selected.append(row)
    return selected


def _count_rows(rows: Sequence[Operator]) -> tuple[int, int]:
    listed = _list_once(rows)
    npu = sum(row.where == "NPU" for row in listed)
    return npu, len(listed) - npu


#: CPU kernels that quantize or dequantize, of ExecuTorch and of its Arm backend.
_CONVERSIONS = ("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel")


def _with_conversion(row: Operator, layer: Layer) -> Operator:
    """Add the reason to a quantize or dequantize operator on the CPU; return other rows unchanged."""
    if layer.where != CPU or layer.operator.partition("::")[2].partition(".")[0] not in _CONVERSIONS:
        return row
    end = re.search(r" (input|output) \d+$", layer.name)
    reason = AT_THE_ENDS if end else BETWEEN_SIDES
    return replace(row, id=reason.id, reason=reason.text, way_out=reason.way_out)


_IN_PLACE = (
    "in place: the NPU reads the buffer without a copy, in generated firmware and in the simulator; ExecuTorch's delegate copies it"
)


def states_of(method: Method, payloads: Sequence[DelegatePayload], buffers: Sequence[StateBuffer]) -> tuple[State, ...]:
    """Return the mutable buffers of a method.

    Args:
        payloads: Payloads of its delegates, in order.
        buffers: Buffers of the build; empty for a file, which has names, shapes and dtypes only.
    """
    states = []
    results: set[int] = set()  # outputs of delegates
    decided = {buffer.name: buffer for buffer in buffers}
    reads = reads_in_place(method, dict(enumerate(payloads)))
    for value in method.values:
        if value.kind != "tensor" or not value.planned or value.extra is None or not value.extra.name:
            continue
        members = {number for number, second in enumerate(method.values) if _overlap(value, second)}
        where: list[str] = []
        bytes_to_npu = bytes_from_npu = 0
        copied = False
        for call in method.calls:
            if call.delegate is None:
                if members & set(call.args):
                    where.append("CPU")
                    bytes_from_npu += (
                        sum(method.values[arg].nbytes for arg in call.args[:-1] if arg in results)
                        if call.args[-1] in members
                        else 0
                    )
                continue
            count = len(payloads[call.delegate].inputs)
            results |= set(call.args[count:])
            where += [f"NPU {call.delegate}"] if members & set(call.args) else []
            bytes_to_npu += sum(method.values[arg].nbytes for arg in call.args[:count] if arg in members)
            read_numbers = reads[call.delegate].numbers if call.delegate in reads else {}
            copied |= any(number not in read_numbers for number, arg in enumerate(call.args[:count]) if arg in members)
            bytes_from_npu += sum(method.values[arg].nbytes for arg in call.args[count:] if arg in members)
        buffer = decided.get(value.extra.name)
        reason = None if buffer is None else buffer.reason
        if reason is None and copied:
            reason = STATE_COPIED if is_kept(value) else STATE_AMONG_TENSORS
        states.append(
            State(
                value.extra.name,
                value.dtype,
                value.shape,
                value.nbytes,
                None if buffer is None else buffer.scale,
                None if buffer is None else buffer.zero_point,
                tuple(dict.fromkeys(where)),
                bytes_to_npu,
                bytes_from_npu,
                *(("", "", "") if reason is None else (reason.id, reason.text, reason.way_out)),
                bytes_to_npu > 0 and not copied,
            )
        )
    return tuple(states)


def _add(rows: list[Operator], refusal: Refusal) -> None:
    """Add a refusal to the row of its operator, or as a new row if that has another reason."""
    origin, reason = refusal.origin, refusal.reason
    new = Operator(
        origin.target, "CPU", None, origin.module, origin.source, id=reason.id, reason=reason.text, way_out=reason.way_out
    )
    for number, row in enumerate(rows):
        same = (row.where, row.operator, row.module, row.source) == (new.where, new.operator, new.module, new.source)
        if same and row.id in ("", new.id):
            rows[number] = replace(new, cycles=row.cycles, share=row.share, bound=row.bound)
            return
    rows.append(new)


def _overlap(value: Value, second: Value) -> bool:
    if second.kind != "tensor" or value.place is None or second.place is None or value.place[0] != second.place[0]:
        return False
    return value.place[1] < second.place[1] + second.nbytes and second.place[1] < value.place[1] + value.nbytes

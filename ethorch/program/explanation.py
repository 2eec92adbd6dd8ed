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
from ethorch.targets.cpu_operators import base_name

if TYPE_CHECKING:
    from rich.console import RenderableType

AT_THE_ENDS = Reason(
    "io.floats",
    "the program has float32 inputs or outputs, which the CPU quantizes or dequantizes in each call",
    'Use io="int8" (--io int8), or io="int16" for scheme a16w8, and pass quantized values in firmware.',
)
BETWEEN_SIDES = Reason("io.between", "the operator converts values between a float operator on the CPU and the NPU", BETWEEN)
INT64_INPUTS = Reason(
    "io.int64",
    "the program has int64 inputs, which the CPU converts to int32 in each call",
    "Pass int32 inputs, if the model accepts them.",
)
LOWERED = Reason(
    "cpu.lowered",
    "the kernel is part of an operator that stays on the CPU, or prepares its operands",
    "Follow the remedies of the other CPU operators.",
)
STATE_COPIED = Reason(
    "state.copied",
    "the NPU cannot read the buffer in place, e.g. because an operation reads it together with other bytes, so the buffer "
    "is copied in each call",
    "No change is necessary. Results are not affected, and the copy takes about half a CPU cycle per byte.",
)
STATE_AMONG_TENSORS = Reason(
    "state.among_tensors",
    "ExecuTorch wrote the program and stored the buffer in memory that is shared with temporary tensors",
    "Change the model so that ethorch can write the .pte. `Program.explain` prints the reason, after 'Written by ExecuTorch'.",
)


@dataclass(frozen=True)
class Operator:
    """One row of an explanation.

    Attributes:
        operator: Names of the PyTorch operators. For a loaded ``.pte``, name of the NPU operation or of the ExecuTorch kernel.
        delegate: Number of the delegate, or None on the CPU.
        module, source: Module path and ``file.py:line``, or "" if unknown.
        share: Share of the program's cycles, from 0 to 1, or None if unknown.
        bound: Resource that limits the layer, or "" if unknown.
        id, reason, remedy: Stable identifier, text and remedy of the reason why the operator runs on the CPU.
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
    remedy: str = ""


@dataclass(frozen=True)
class State:
    """A mutable buffer.

    Attributes:
        name: Qualified name in the model.
        size_bytes: RAM that the buffer occupies, excluding copies in the scratch region.
        scale, zero_point: Quantization parameters, or None for float buffers and for a loaded ``.pte``.
        where: Delegates (and the CPU) that access the buffer, e.g. ``("NPU 0", "CPU")``.
        to_npu_bytes, from_npu_bytes: Bytes that ExecuTorch's EthosUBackend copies to and from the NPU's memory in each call.
        id, reason, remedy: Stable identifier, text and remedy of the reason why the buffer is float or is copied in each call.
        in_place: Whether the NPU reads the buffer in place in generated firmware and in the simulator.
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
    remedy: str = ""
    in_place: bool = False


@dataclass(frozen=True)
class Explanation:
    """The operators and mutable buffers of a program.

    Attributes:
        operators: Operators in execution order, followed by refused operators without a layer.
        placement: Text such as ``5 of 6 PyTorch operators on ethos-u55-128 in 1 delegate``, or "" for a loaded ``.pte``.
        writer: Component that wrote the ``.pte``, and the reason if it is ExecuTorch. None for a loaded ``.pte``.
        counts: Numbers of NPU and CPU rows before filtering. Default: the row counts of ``operators``.
    """

    target: str
    operators: tuple[Operator, ...]
    states: tuple[State, ...] = ()
    placement: str = ""
    writer: dict[str, str] | None = None
    counts: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {
            "target": self.target,
            "operators": [asdict(operator) for operator in self.operators],
            "states": [asdict(state) for state in self.states],
            "writer": self.writer,
        }

    def rich(self) -> RenderableType:
        """Return a renderable for Rich: a table of operators, and a paragraph for each reason."""
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
            else "No rows, because all selected operators run on the NPU."
        )
        last += f" Model: {self.placement}." if self.placement else ""
        lines_of_states = ["", "Mutable buffers:", self._states()] if self.states else []
        lines_of_states += [_IN_PLACE] if any(state.in_place for state in self.states) else []
        for state in self.states:
            lines_of_states += [f"{state.name}: {state.reason} [{state.id}] {state.remedy}"] if state.reason else []
        reason = writer_text(self.writer) if self.writer else ""
        lines_of_states += ["", f"Written by ExecuTorch: {reason}"] if reason else []
        return Group(table, *(["", "On the CPU:"] if lines else []), *lines, *lines_of_states, "", last)

    def _states(self) -> RenderableType:
        table = tables.table()
        for name in ("buffer", "type", "used by"):
            table.add_column(name)
        for name in ("scale", "RAM bytes", "bytes to NPU", "bytes from NPU"):
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
    """Create an explanation from layers and refusals.

    Args:
        partition: Partition report, or None for a loaded ``.pte``, which does not record reasons.
        operator: Substring of the selected operators' names.
        states: Result of ``states_of``. Ignored if ``operator`` is set.

    Raises:
        SpecError: No name contains ``operator``.
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
    if partition is not None:
        for refusal in (*partition.refusals, *partition.without_kernel):
            _add(rows, refusal)
        rows[: len(layers)] = [_with_reason(row, layer) for row, layer in zip(rows, layers, strict=False)]
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
    """Return the first row of each operator."""
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


#: Names of CPU kernels that quantize or dequantize, in ExecuTorch and its Arm backend.
_CONVERSIONS = ("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel")


def _with_conversion(row: Operator, layer: Layer) -> Operator:
    # Add the reason why a quantize or dequantize operator runs on the CPU.
    if layer.where != CPU or layer.operator.partition("::")[2].partition(".")[0] not in _CONVERSIONS:
        return row
    end = re.search(r" (input|output) \d+$", layer.name)
    reason = AT_THE_ENDS if end else BETWEEN_SIDES
    return replace(row, id=reason.id, reason=reason.text, remedy=reason.remedy)


def _with_reason(row: Operator, layer: Layer) -> Operator:
    # Add the reason of a CPU operator that is not in the partition report.
    if layer.where != CPU or row.id:
        return row
    casts = base_name(layer.operator) in ("to_dim_order", "to", "clamp") and re.search(r" input \d+$", layer.name)
    reason = INT64_INPUTS if casts else LOWERED
    return replace(row, id=reason.id, reason=reason.text, remedy=reason.remedy)


_IN_PLACE = "in place: generated firmware and the simulator do not copy the buffer, but ExecuTorch's EthosUBackend copies it"


def states_of(method: Method, payloads: Sequence[DelegatePayload], buffers: Sequence[StateBuffer]) -> tuple[State, ...]:
    """Return the mutable buffers of a method.

    Args:
        payloads: Payloads of the method's delegates, in order.
        buffers: Mutable buffers of the build. Empty for a loaded ``.pte``, which records only names, shapes and dtypes.
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
                *(("", "", "") if reason is None else (reason.id, reason.text, reason.remedy)),
                bytes_to_npu > 0 and not copied,
            )
        )
    return tuple(states)


def _add(rows: list[Operator], refusal: Refusal) -> None:
    origin, reason = refusal.origin, refusal.reason
    new = Operator(origin.target, "CPU", None, origin.module, origin.source, id=reason.id, reason=reason.text, remedy=reason.remedy)
    place = (new.where, new.operator, new.module, new.source)
    numbers = [k for k, row in enumerate(rows) if (row.where, row.operator, row.module, row.source) == place]
    for id in ("", new.id):
        for number in numbers:
            if rows[number].id == id:
                row = rows[number]
                rows[number] = replace(new, cycles=row.cycles, share=row.share, bound=row.bound)
                return
    rows.append(new)


def _overlap(value: Value, second: Value) -> bool:
    if second.kind != "tensor" or value.place is None or second.place is None or value.place[0] != second.place[0]:
        return False
    return value.place[1] < second.place[1] + second.nbytes and second.place[1] < value.place[1] + value.nbytes

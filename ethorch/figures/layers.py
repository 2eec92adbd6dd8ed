from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ethorch.backend.emit.build import Build
from ethorch.figures.cpu_rates import estimate, library_of, macs_of, rate_of
from ethorch.figures.layer import CPU, NPU, Layer
from ethorch.figures.stream_layers import stream_layers
from ethorch.figures.subject import Subject, subject
from ethorch.formats.pte_types import Call, Value
from ethorch.npu import Sources
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.cpu_operators import base_name
from ethorch.tosa.ir import Origin

#: Memory name for the traffic of CPU operators, because ExecuTorch's memory plan does not name memories.
RAM = "Ram"
_DIGITS = 8  # decimal digits of fractions, so that fractions survive a JSON round trip


def layers(
    source: Build | bytes | str | os.PathLike[str],
    method: str = "forward",
    *,
    spec: EthosUCompileSpec | None = None,
    sources: Mapping[int, Sources] | None = None,
) -> tuple[Layer, ...]:
    """Return one layer for each NPU operation and each CPU operator, in execution order.

    For a .pte, each NPU command that starts a computation is one layer, with bytes and multiply-accumulates.
    If ``sources`` is passed, all commands of an operator are one layer with cycles, PyTorch operators and source lines.
    Layers of all control flow branches are listed, in stored order.

    Args:
        source, method, spec, sources: See :func:`ethorch.figures.subject.subject`.

    Raises:
        EthorchError, ProgramError, PayloadError, MachineFault: See :func:`ethorch.figures.subject.subject`.
    """
    return tuple(layer for run in runs(subject(source, method, spec=spec, sources=sources)) for layer in run.layers)


@dataclass(frozen=True)
class Run:
    """One call in a method, and its layers: the operations of a delegate, or one CPU operator."""

    call: Call
    layers: tuple[Layer, ...]


def runs(program: Subject) -> list[Run]:
    """Return the calls of the method in execution order, with numbered layers and their shares of the cycles."""
    read = _converted_inputs(program)
    origins = _cpu_origins(program, read)
    calls: list[Run] = []
    count = 0
    for call in program.method.calls:
        if call.delegate is None:
            origin = None if call.args[-1] in read else next(origins[_key(call.operator)], None)
            call_layers = [_cpu_layer(program, call, count, origin, read)]
        else:
            call_layers = _npu_layers(program, call.delegate, count)
        calls.append(Run(call, tuple(call_layers)))
        count += len(call_layers)
    return _add_shares(calls)


def _npu_layers(program: Subject, delegate: int, first: int) -> list[Layer]:
    part = program.parts[delegate]
    if part.schedule is not None:
        part_layers = part.schedule.layers(first, delegate)
    else:
        part_layers = stream_layers(part, first)
    if part.target is None:  # a delegate of another backend is opaque
        return [Layer(first, f"delegate {delegate}", NPU, delegate, part.backend)]
    macs = part.target.macs
    return [
        replace(layer, utilization=round(layer.macs / (layer.cycles * macs), _DIGITS)) if layer.cycles else layer
        for layer in part_layers
    ]


def _cpu_layer(program: Subject, call: Call, index: int, origin: Origin | None, read: Mapping[int, int]) -> Layer:
    inputs, outputs = ends_of(program, call)
    input_values, output_values = [value for _, value in inputs], [value for _, value in outputs]
    macs = macs_of(call.operator, input_values, output_values, _is_transposed(program, call))
    ends = [number for number, _ in inputs if number in program.method.inputs]
    ends += [read[number] for number, _ in outputs if number in read]
    ends += [number for number, _ in outputs if number in program.method.outputs] or [number for number, _ in outputs]
    return Layer(
        index=index,
        name=f"{base_name(call.operator)} {program.ends(ends[0])}" if ends else base_name(call.operator),
        where=CPU,
        delegate=None,
        operator=call.operator,
        operators=(origin.target,) if origin else (call.operator.replace("::", "."),),
        module=origin.module if origin else "",
        source=origin.source if origin else "",
        cycles=estimate(call.operator, input_values, output_values, macs),
        macs=macs,
        read_bytes=_bytes(input_values),
        written_bytes=_bytes(output_values),
        ifm_shapes=tuple(value.shape for value in input_values),
        ofm_shape=output_values[0].shape if output_values else (),
        library=library_of(call.operator),
        estimate=rate_of(call.operator).name,
    )


def _is_transposed(program: Subject, call: Call) -> bool:
    # the seventh argument of aten::convolution
    return base_name(call.operator) == "convolution" and len(call.args) > 6 and bool(program.method.values[call.args[6]].number)


def ends_of(program: Subject, call: Call) -> tuple[list[tuple[int, Value]], list[tuple[int, Value]]]:
    """Return the tensors that an operator call reads, and those that it writes."""
    # The last argument of an ExecuTorch call is its output, or a list of outputs.
    outputs = program.tensors_of(call.args[-1]) if call.args else []
    written = {number for number, _ in outputs}
    inputs = [entry for arg in call.args[:-1] for entry in program.tensors_of(arg) if entry[0] not in written]
    return list(dict.fromkeys(inputs)), outputs


def _bytes(values: list[Value]) -> dict[str, int]:
    total = sum(value.nbytes for value in values)
    return {RAM: total} if total else {}


def _converted_inputs(program: Subject) -> dict[int, int]:
    # Results of the casts of int64 inputs, and of clamps before these casts -> the input. See ``lower.fx.node.converts_input``.
    method, read = program.method, dict[int, int]()

    def is_cast(call: Call) -> bool:
        return call.delegate is None and _key(call.operator) == "to"

    for call in method.calls:
        source = read.get(call.args[0], call.args[0]) if call.args else None
        if source not in method.inputs or method.values[source].dtype != "int64":
            continue
        result = call.args[-1]
        clamps = call.delegate is None and _key(call.operator) == "clamp" and result not in method.outputs
        if is_cast(call) or (clamps and all(is_cast(user) for user in method.calls if result in user.args and user is not call)):
            read[result] = source
    return read


def _key(operator: str) -> str:
    return base_name(operator).removesuffix("_dim_order")  # ExecuTorch writes aten.to as dim_order_ops._to_dim_order_copy


def _cpu_origins(program: Subject, read: Mapping[int, int]) -> defaultdict[str, Iterator[Origin]]:
    # A program does not record source lines. If the number of calls of an operator is equal to the number of refused operators
    # with its name, origins are assigned in order. Otherwise they are omitted.
    origins_by_name: dict[str, list[Origin]] = defaultdict(list)
    for refusal in program.partition.refusals if program.partition else ():
        origins_by_name[_key(refusal.origin.target)].append(refusal.origin)
    call_counts = Counter(
        _key(call.operator) for call in program.method.calls if call.delegate is None and call.args[-1] not in read
    )
    assigned: defaultdict[str, Iterator[Origin]] = defaultdict(lambda: iter(()))
    for name, origins in origins_by_name.items():
        if call_counts[name] == len(origins):
            assigned[name] = iter(origins)
    return assigned


def _add_shares(calls: list[Run]) -> list[Run]:
    cycles = [layer.cycles for run in calls for layer in run.layers]
    if None in cycles or not (total := sum(filter(None, cycles))):
        return calls
    return [
        Run(run.call, tuple(replace(layer, share=round((layer.cycles or 0) / total, _DIGITS)) for layer in run.layers))
        for run in calls
    ]

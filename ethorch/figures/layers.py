"""The layers of a program in the order of execution: NPU operations and CPU operators."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ethorch.backend.emit.build import Build
from ethorch.figures.cpu_rates import base_name, estimate, library_of, macs_of, rate_of
from ethorch.figures.layer import CPU, NPU, Layer
from ethorch.figures.stream_layers import stream_layers
from ethorch.figures.subject import Subject, subject
from ethorch.formats.pte_types import Call, Value
from ethorch.npu import Sources
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tosa.ir import Origin

#: Where a CPU operator's traffic goes: the plan of ExecuTorch's runtime does not say in which memory it lies.
RAM = "Ram"
_DIGITS = 8  # of parts of a whole, so that they are the same numbers again when read from JSON


def layers(
    source: Build | bytes | str | os.PathLike[str],
    method: str = "forward",
    *,
    spec: EthosUCompileSpec | None = None,
    sources: Mapping[int, Sources] | None = None,
) -> tuple[Layer, ...]:
    """One entry for each NPU operation and for each operator on the CPU, in the order of execution.

    Of a build, all is known. Of a .pte, NPU operations are the commands of its stream, with bytes and multiply-accumulates; cycles,
    PyTorch operators and lines are known where ``sources`` has them. Branches are listed one after the other.

    Args:
        source, method, spec, sources: as of ``figures.subject``.

    Raises:
        EthorchError, ProgramError, PayloadError, MachineFault: as of ``figures.subject``.
    """
    return tuple(layer for run in runs(subject(source, method, spec=spec, sources=sources)) for layer in run.layers)


@dataclass(frozen=True)
class Run:
    """One call of the program, and the layers that it is: of a delegate its operations, of an operator itself."""

    call: Call
    layers: tuple[Layer, ...]


def runs(program: Subject) -> list[Run]:
    """The calls of the method in order, with their layers, which are numbered through and have their shares."""
    origins = _cpu_origins(program)
    found: list[Run] = []
    count = 0
    for call in program.method.calls:
        if call.delegate is None:
            made = [_on_cpu(program, call, count, next(origins[base_name(call.operator)], None))]
        else:
            made = _on_npu(program, call.delegate, count)
        found.append(Run(call, tuple(made)))
        count += len(made)
    return _with_shares(found)


def _on_npu(program: Subject, delegate: int, first: int) -> list[Layer]:
    part = program.parts[delegate]
    if part.schedule is not None:
        made = part.schedule.layers(first, delegate)
    else:
        made = stream_layers(part, first)
    if part.target is None:  # another backend's: nothing is known of what it does
        return [Layer(first, f"delegate {delegate}", NPU, delegate, part.backend)]
    macs = part.target.macs
    return [
        replace(layer, utilization=round(layer.macs / (layer.cycles * macs), _DIGITS)) if layer.cycles else layer for layer in made
    ]


def _on_cpu(program: Subject, call: Call, index: int, origin: Origin | None) -> Layer:
    inputs, outputs = ends_of(program, call)
    taken, given = [value for _, value in inputs], [value for _, value in outputs]
    macs = macs_of(call.operator, taken, given)
    named = [number for number, _ in inputs if number in program.method.inputs]
    named += [number for number, _ in outputs if number in program.method.outputs] or [number for number, _ in outputs]
    return Layer(
        index=index,
        name=f"{base_name(call.operator)} {program.ends(named[0])}" if named else base_name(call.operator),
        where=CPU,
        delegate=None,
        operator=call.operator,
        operators=(origin.target,) if origin else (call.operator.replace("::", "."),),
        module=origin.module if origin else "",
        source=origin.source if origin else "",
        cycles=estimate(call.operator, taken, given, macs),
        macs=macs,
        read_bytes=_bytes(taken),
        written_bytes=_bytes(given),
        ifm_shapes=tuple(value.shape for value in taken),
        ofm_shape=given[0].shape if given else (),
        library=library_of(call.operator),
        estimate=rate_of(call.operator).name,
    )


def ends_of(program: Subject, call: Call) -> tuple[list[tuple[int, Value]], list[tuple[int, Value]]]:
    """The tensors that a call of an operator reads and writes. ExecuTorch lists what is written last, and once more behind it."""
    outputs = program.tensors_of(call.args[-1]) if call.args else []
    written = {number for number, _ in outputs}
    inputs = [entry for arg in call.args[:-1] for entry in program.tensors_of(arg) if entry[0] not in written]
    return list(dict.fromkeys(inputs)), outputs


def _bytes(values: list[Value]) -> dict[str, int]:
    total = sum(value.nbytes for value in values)
    return {RAM: total} if total else {}


def _cpu_origins(program: Subject) -> defaultdict[str, Iterator[Origin]]:
    """By an operator's name, the places in the user's code of those that were left to the CPU, in order.

    A program does not say which line an instruction is from. Where it calls a kernel as often as operators of that name were left,
    they are taken for the same ones in the same order; else none is.
    """
    left: dict[str, list[Origin]] = defaultdict(list)
    for refusal in program.partition.refusals if program.partition else ():
        left[base_name(refusal.origin.target)].append(refusal.origin)
    called = Counter(base_name(call.operator) for call in program.method.calls if call.delegate is None)
    found: defaultdict[str, Iterator[Origin]] = defaultdict(lambda: iter(()))
    for name, origins in left.items():
        if called[name] == len(origins):
            found[name] = iter(origins)
    return found


def _with_shares(found: list[Run]) -> list[Run]:
    cycles = [layer.cycles for run in found for layer in run.layers]
    if None in cycles or not (total := sum(filter(None, cycles))):
        return found
    return [
        Run(run.call, tuple(replace(layer, share=round((layer.cycles or 0) / total, _DIGITS)) for layer in run.layers))
        for run in found
    ]

"""The input of all figures: a Build (complete information) or a .pte (partial information)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ethorch.backend.emit.build import Build
from ethorch.figures.schedule import Schedule
from ethorch.figures.stream_tensors import highest
from ethorch.formats import pte
from ethorch.formats.payload import BACKEND_ID, SCRATCH_REGION, DelegatePayload
from ethorch.formats.pte_types import Method, Move, Program, Value
from ethorch.lower.partition_report import PartitionReport
from ethorch.npu import Program as NpuProgram
from ethorch.npu import Sources
from ethorch.npu.staging import STAGING_REGION
from ethorch.support.errors import SpecError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.npus import TARGETS, Target
from ethorch.targets.vela_ini import MemorySystem
from ethorch.vela.lowered import Lowered

#: Name of each NPU region: constants, feature maps (scratch) and staging memory.
REGIONS: Mapping[int, str] = {0: "constants", SCRATCH_REGION: "scratch", STAGING_REGION: "staging"}


@dataclass(frozen=True)
class Part:
    """One delegate of a method.

    Attributes:
        number: Position among the method's delegates.
        backend: Backend id.
        blob_bytes: Size of the delegate in the file.
        payload: NPU payload, or None for other backends.
        lowered: Compile-time information, or None for a .pte.
        sources: Operator of each command, or None if unknown.
        spec: Compile spec, or None if it is not recorded or its ini file does not exist.
    """

    number: int
    backend: str
    blob_bytes: int
    payload: DelegatePayload | None
    lowered: Lowered | None
    sources: Sources | None
    spec: EthosUCompileSpec | None

    @cached_property
    def npu(self) -> NpuProgram | None:
        """The parsed command stream, or None if ``payload`` is None."""
        return None if self.payload is None else NpuProgram(self.payload.commands, self.payload.weights)

    @cached_property
    def schedule(self) -> Schedule | None:
        """Vela's schedule and memory plan, or None for a .pte."""
        return None if self.lowered is None else Schedule(self.lowered)

    @cached_property
    def target(self) -> Target | None:
        """The target of the command stream, or None if ``payload`` is None."""
        return None if self.npu is None else TARGETS[self.npu.config.name]

    @cached_property
    def staging_bytes(self) -> int:
        """The size of region 2: planned by Vela or, for a .pte, the highest accessed address."""
        if self.lowered is not None:
            return self.lowered.compiled.scratch_fast_bytes
        if self.npu is None or (self.memory_system is not None and not self.memory_system.staged):
            return 0
        return highest(self.npu, STAGING_REGION)

    @property
    def memory_system(self) -> MemorySystem | None:
        """The clock and memories, or None if the spec is unknown."""
        return None if self.spec is None else self.spec.memory_system

    def memory_of(self, region: int) -> str:
        """Return Vela's name for a region's memory, e.g. ``Sram``, or the region's name if the spec is unknown."""
        system = self.memory_system
        if system is None or region not in REGIONS:
            return REGIONS.get(region, f"region {region}")
        constants = "Sram" if system.constants_in_sram else system.const_area
        return {0: constants, SCRATCH_REGION: system.arena_area, STAGING_REGION: system.cache_area}[region]


@dataclass(frozen=True)
class Subject:
    """One method of a program.

    Attributes:
        program, method: Parsed file and method.
        parts: Delegates of the method.
        partition: Partition report, or None for a .pte.
    """

    pte: bytes
    program: Program
    method: Method
    parts: tuple[Part, ...]
    partition: PartitionReport | None

    def ends(self, index: int) -> str:
        """Return the display name of a value: a buffer name, or e.g. ``input 0``, ``output 1``, ``state 0`` or ``value 7``."""
        if index in self.method.inputs:
            return f"input {self.method.inputs.index(index)}"
        if index in self.method.outputs:
            return f"output {self.method.outputs.index(index)}"
        value = self.method.values[index]
        if value.extra and value.extra.name:
            return value.extra.name
        return f"state {self.states.index(index)}" if index in self.states else f"value {index}"

    @cached_property
    def states(self) -> tuple[int, ...]:
        """The indices of planned tensors that persist between runs. Each run reads them before it writes to them."""
        moved = (step.target for chain in self.method.chains for step in chain.instructions if isinstance(step, Move))
        written = {*self.method.inputs, *moved}
        states: list[int] = []
        for call in self.method.calls:
            payload = None if call.delegate is None else self.parts[call.delegate].payload
            reads = call.args[:-1] if call.delegate is None else call.args[: len(payload.inputs)] if payload else ()
            outputs = {number for arg in call.args[-1:] for number, _ in self.tensors_of(arg)} if call.delegate is None else set()
            for number, value in (tensor for arg in reads for tensor in self.tensors_of(arg)):
                is_persistent = value.planned and number not in written and number not in states
                if is_persistent and (number not in outputs or call.operator.split(".")[0].endswith("_")):
                    states.append(number)
            written.update(number for arg in call.args for number, _ in self.tensors_of(arg))
        return tuple(states)

    def tensors_of(self, index: int) -> list[tuple[int, Value]]:
        """Return (value index, tensor) for each tensor in an argument of a call."""
        value = self.method.values[index]
        items = value.items if value.kind.startswith("tensor") else ()
        numbers = [index] if value.kind == "tensor" else [item for item in items if item >= 0]
        return [(number, self.method.values[number]) for number in numbers if self.method.values[number].kind == "tensor"]


def subject(
    source: Build | bytes | str | os.PathLike[str],
    method: str | None = None,
    *,
    spec: EthosUCompileSpec | None = None,
    sources: Mapping[int, Sources] | None = None,
) -> Subject:
    """Open a build, or a .pte compiled by ethorch or by the Arm backend.

    Args:
        source: Build, or the contents or path of a .pte.
        method: Method name. Default: ``forward`` if it exists, otherwise the first method.
        spec: Compile spec, required only if the file refers to a custom ini file.
        sources: Operator of each command, by delegate number. See ``vela.artifacts.sources``.

    Raises:
        EthorchError: The file or the method does not exist.
        ProgramError, PayloadError, MachineFault: The file, a delegate or a command stream is malformed.
    """
    delegates: tuple[Lowered, ...] = ()
    partition: PartitionReport | None = None
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    elif isinstance(source, (str, os.PathLike)):
        data = pte.contents(source)
    else:
        data, delegates, partition = source.pte, source.delegates, source.partition
        spec = spec or source.spec
    program = pte.read(data)
    method = pte.entry_point(program, method)
    unmatched = [(lowered.payload, lowered) for lowered in delegates]
    lowered_by_payload = dict(unmatched)  # a file that stores equal delegates once calls the same delegate several times
    parts = []
    for number, delegate in enumerate(program.methods[method].delegates):
        payload = delegate.payload if delegate.id == BACKEND_ID else None
        lowered = None
        if payload is not None:
            match = next((candidate for candidate in unmatched if candidate[0] == payload), None)
            if match is not None:
                unmatched.remove(match)
            lowered = match[1] if match is not None else lowered_by_payload.get(payload)
        part_spec = spec or (_spec(delegate.compile_specs) if payload is not None else None)
        parts.append(
            Part(
                number,
                delegate.id,
                len(delegate.blob),
                payload,
                lowered,
                None if sources is None else sources.get(number),
                part_spec,
            )
        )
    return Subject(data, program, program.methods[method], tuple(parts), partition)


def _spec(pairs: tuple[tuple[str, bytes], ...]) -> EthosUCompileSpec | None:
    try:
        return EthosUCompileSpec.from_pairs(pairs)
    except SpecError:  # the ini file does not exist, or a newer ExecuTorch wrote unknown keys
        return None

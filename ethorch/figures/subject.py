"""What figures are taken of: a finished build, of which all is known, or a .pte, of which the file tells a part."""

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

#: Regions of an NPU by number: constants, feature maps, staging memory.
REGIONS: Mapping[int, str] = {0: "constants", SCRATCH_REGION: "scratch", STAGING_REGION: "staging"}


@dataclass(frozen=True)
class Part:
    """One delegate of the method.

    Attributes:
        number: in the order of the file.
        backend: whom the delegate is for.
        blob_bytes: its size in the file.
        payload: what the NPU gets; None of another backend's.
        lowered: how it came about; None where only the file is known.
        sources: which operator each command works for, where that was kept beside a file.
        spec: what it was compiled for; None where the file does not say, or names an ini file that is not there.
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
        """The command stream, read."""
        return None if self.payload is None else NpuProgram(self.payload.commands, self.payload.weights)

    @cached_property
    def schedule(self) -> Schedule | None:
        """Vela's schedule and memory plan, where it is known how the delegate came about."""
        return None if self.lowered is None else Schedule(self.lowered)

    @cached_property
    def target(self) -> Target | None:
        """The NPU, by the command stream."""
        return None if self.npu is None else TARGETS[self.npu.config.name]

    @cached_property
    def staging_bytes(self) -> int:
        """Size of region 2: by Vela, or what the commands touch of it."""
        if self.lowered is not None:
            return self.lowered.compiled.scratch_fast_bytes
        if self.npu is None or (self.memory_system is not None and not self.memory_system.staged):
            return 0
        return highest(self.npu, STAGING_REGION)

    @property
    def memory_system(self) -> MemorySystem | None:
        """Clock and memories, as far as the spec is known."""
        return None if self.spec is None else self.spec.memory_system

    def memory_of(self, region: int) -> str:
        """The memory that a region lies in, in Vela's words (``Sram``); the region's name where the spec is unknown."""
        system = self.memory_system
        if system is None or region not in REGIONS:
            return REGIONS.get(region, f"region {region}")
        constants = "Sram" if system.constants_in_sram else system.const_area
        return {0: constants, SCRATCH_REGION: system.arena_area, STAGING_REGION: system.cache_area}[region]


@dataclass(frozen=True)
class Subject:
    """One method of a program, with all that is known of it.

    Attributes:
        pte: the file.
        program, method: the file, read.
        parts: its delegates.
        partition: which operators stayed on the CPU and why; None where only the file is known.
    """

    pte: bytes
    program: Program
    method: Method
    parts: tuple[Part, ...]
    partition: PartitionReport | None

    def ends(self, index: int) -> str:
        """``input 0``, ``output 1``, ``state 0``, the name in the module, or ``value 7``: what a value is to a user."""
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
        """Tensors of the plan that are kept from run to run: a call reads them that nothing has written before."""
        moved = (step.target for chain in self.method.chains for step in chain.instructions if isinstance(step, Move))
        written = {*self.method.inputs, *moved}
        found: list[int] = []
        for call in self.method.calls:
            payload = None if call.delegate is None else self.parts[call.delegate].payload
            reads = call.args[:-1] if call.delegate is None else call.args[: len(payload.inputs)] if payload else ()
            given = {number for arg in call.args[-1:] for number, _ in self.tensors_of(arg)} if call.delegate is None else set()
            for number, value in (entry for arg in reads for entry in self.tensors_of(arg)):
                kept = value.planned and number not in written and number not in found
                if kept and (number not in given or call.operator.split(".")[0].endswith("_")):
                    found.append(number)
            written.update(number for arg in call.args for number, _ in self.tensors_of(arg))
        return tuple(found)

    def tensors_of(self, index: int) -> list[tuple[int, Value]]:
        """The tensors that an argument is or lists, with their numbers."""
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
    """Open a build or a .pte, ethorch's or the Arm backend's.

    Args:
        source: a ``Build``, or the contents or the path of a .pte.
        method: which entry point; None is ``forward``, or the first of a file without it.
        spec: what it was compiled for, where the file cannot say: with an ini file of the user's own.
        sources: by number of a delegate, what ``dump_intermediate_artifacts_to`` kept of it (``vela.artifacts.sources``).

    Raises:
        EthorchError: there is no such file or method.
        ProgramError, PayloadError, MachineFault: the file, a delegate or a command stream is malformed.
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
    left = [(lowered.payload, lowered) for lowered in delegates]
    known = dict(left)  # what equal delegates share, where the file calls one of them twice
    parts = []
    for number, delegate in enumerate(program.methods[method].delegates):
        payload = delegate.payload if delegate.id == BACKEND_ID else None
        lowered = None
        if payload is not None:
            found = next((entry for entry in left if entry[0] == payload), None)
            if found is not None:
                left.remove(found)
            lowered = found[1] if found is not None else known.get(payload)
        own = spec or (_spec(delegate.compile_specs) if payload is not None else None)
        parts.append(
            Part(number, delegate.id, len(delegate.blob), payload, lowered, None if sources is None else sources.get(number), own)
        )
    return Subject(data, program, program.methods[method], tuple(parts), partition)


def _spec(pairs: tuple[tuple[str, bytes], ...]) -> EthosUCompileSpec | None:
    try:
        return EthosUCompileSpec.from_pairs(pairs)
    except SpecError:  # an ini file that is not here, or keys of a newer ExecuTorch
        return None

"""Memory of the whole application: what the NPU, ExecuTorch's runtime and the program take, in RAM and in flash.

Counted is a Cortex-M that runs ExecuTorch with Arm's delegate: the delegate takes its scratch region from the temporary allocator,
one after the other, and ExecuTorch's structures are those of 32 bits. Code and stacks are not counted: they depend on the firmware.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ethorch.backend.emit.build import Build
from ethorch.figures.layers import Run, ends_of, runs
from ethorch.figures.memory_report import DRAM, FLASH, RAM, SRAM, Component, MemoryReport, TensorPlace
from ethorch.figures.method_pool import (
    CORTEX_M,
    DELEGATE_HANDLE_BYTES,
    DESK,
    kernel_temporary_bytes,
    lookup_bytes,
    method_pool_bytes,
)
from ethorch.figures.stream_layers import stream_tensors
from ethorch.figures.subject import REGIONS, Part, Subject, subject
from ethorch.formats.payload import SCRATCH_REGION
from ethorch.npu.staging import STAGING_REGION
from ethorch.targets.compile_spec import EthosUCompileSpec


def memory(
    source: Build | bytes | str | os.PathLike[str], method: str = "forward", *, spec: EthosUCompileSpec | None = None
) -> MemoryReport:
    """The memory of the whole application: components, totals, and the tensors in them.

    Sizes are the same of a build and of its .pte, but for staging memory: a build has what Vela planned, a .pte what the commands
    touch, which may be a little less. Of a .pte, the NPU's tensors are those that its commands write.

    Args:
        source, method, spec: as of ``figures.subject``.

    Raises:
        EthorchError, ProgramError, PayloadError, MachineFault: as of ``figures.subject``.
    """
    program = subject(source, method, spec=spec)
    found = runs(program)
    kernels = kernel_temporary_bytes(program.method)
    temporary, temporary_desk = (max(_scratch(program), kernels, lookup_bytes(program.method, abi)) for abi in (CORTEX_M, DESK))
    pool, pool_desk = (method_pool_bytes(program.method, abi) for abi in (CORTEX_M, DESK))
    arenas = {f"arena_{number}": size for number, size in enumerate(program.method.memories) if number}
    by_delegate = {part.number: _regions(part) for part in program.parts if part.payload is not None}
    regions = {name: max(sizes.get(name, 0) for sizes in by_delegate.values()) for name in _names(by_delegate.values())}
    npu = [part for part in program.parts if part.payload is not None]
    return MemoryReport(
        components=(*_ram(program, arenas, regions, pool, temporary), *_file(program)),
        tensors=(*_npu_tensors(program, found), *_arena_tensors(program, found)),
        regions={**regions, **arenas},
        scratch_bytes=by_delegate,
        sram_bytes=max((_sram(part) for part in npu), default=0),
        constants_in_sram=any(part.memory_system is not None and part.memory_system.constants_in_sram for part in npu),
        method_pool_bytes=pool,
        method_pool_bytes_desk=pool_desk,
        temporary_bytes=temporary,
        temporary_bytes_desk=temporary_desk,
        layer_count=sum(len(run.layers) for run in found),
    )


# --- sizes ------------------------------------------------------------------------------------------------------------


def _scratch(program: Subject) -> int:
    """Of the largest scratch region: delegates run one after the other, and the temporary allocator is emptied between."""
    return max((part.payload.scratch_bytes for part in program.parts if part.payload is not None), default=0)


def _regions(part: Part) -> dict[str, int]:
    assert part.payload is not None
    sizes = {"scratch": part.payload.scratch_bytes, "staging": part.staging_bytes}
    return {name: size for name, size in sizes.items() if size}


def _names(sizes: Iterable[Mapping[str, int]]) -> list[str]:
    return list(dict.fromkeys(name for entry in sizes for name in entry))


def _sram(part: Part) -> int:
    """What one delegate takes of SRAM; all of it where the memory mode is unknown."""
    sizes, system = _regions(part), part.memory_system
    if system is None:
        return sum(sizes.values())
    areas = {"scratch": system.arena_area, "staging": system.cache_area}
    return sum(size for name, size in sizes.items() if areas[name] == SRAM)


def _memory_of(program: Subject, region: int, otherwise: str) -> str:
    """The memory of a region, where all delegates agree on it."""
    found = {part.memory_of(region) for part in program.parts if part.payload is not None and part.memory_system is not None}
    return found.pop() if len(found) == 1 else otherwise


def _ram(program: Subject, arenas: Mapping[str, int], regions: Mapping[str, int], pool: int, temporary: int) -> list[Component]:
    count = sum(1 for part in program.parts if part.payload is not None)
    scratch = regions.get("scratch", 0)
    found = [
        Component(
            "scratch", scratch, 0, _memory_of(program, SCRATCH_REGION, RAM),
            "feature maps, inputs and outputs of the NPU: region 1 of the largest delegate, taken from the temporary allocator",
        ),
        Component(
            "staging", regions.get("staging", 0), 0, _memory_of(program, STAGING_REGION, SRAM),
            "the NPU's fast scratch memory: region 2 of the largest delegate, a buffer of the firmware's",
        ),
        Component(
            "temporary", temporary - scratch, 0, RAM,
            "what ExecuTorch's temporary allocator has beyond the scratch region: for kernels, and to look kernels up",
        ),
        *(
            Component(name, size, 0, RAM, "planned by ExecuTorch: inputs, outputs, tensors of the CPU, mutable state")
            for name, size in arenas.items()
        ),
        Component(
            "unplanned_io", _unplanned(program), 0, RAM, "inputs and outputs that the plan leaves to the application's own buffers"
        ),
        Component(
            "method_pool", pool, 0, RAM,
            "what ExecuTorch's method allocator gives out when the method is loaded, by the sizes of its structures on 32 bits",
        ),
        Component(
            "delegate_handles", count * DELEGATE_HANDLE_BYTES, 0, RAM, "from the heap: what Arm's delegate keeps of each delegate"
        ),
    ]  # fmt: skip
    return [component for component in found if component.ram_bytes]


def _unplanned(program: Subject) -> int:
    ends = dict.fromkeys((*program.method.inputs, *program.method.outputs))
    values = (program.method.values[index] for index in ends)
    return sum(value.nbytes for value in values if value.kind == "tensor" and not value.planned and not value.constant)


def _file(program: Subject) -> list[Component]:
    """The .pte, cut up: what is nothing else is the program."""
    payloads = list(dict.fromkeys(part.payload for part in program.parts if part.payload is not None))
    weights, commands = sum(len(p.weights) for p in payloads), sum(len(p.commands) for p in payloads)
    shared = _memory_of(program, 0, FLASH)
    in_ram = shared in (SRAM, DRAM)
    note = "weights, scales and tables of the NPU: region 0, compressed by Vela"
    if in_ram:
        note += f"; the NPU reads them from {shared} in this memory mode: firmware copies them there, and they count in both totals"
    constants = sum(len(data) for data in program.program.constants)
    mutable = sum(len(data) for segment in program.program.mutable for data in segment)
    named = sum(len(data) for data in program.program.named.values())
    found = [
        Component("weights", weights if in_ram else 0, weights, shared, note),
        Component("command_streams", 0, commands, FLASH, "what the NPU executes, with the driver's header"),
        Component("constant_tensors", 0, constants, FLASH, "constants that the CPU reads"),
        Component("mutable_tensors", 0, mutable, FLASH, "what mutable state begins with"),
        Component("named_data", 0, named, FLASH, "what delegates find by name"),
    ]
    rest = len(program.pte) - sum(component.flash_bytes for component in found)
    found.append(Component("program", 0, rest, FLASH, "the .pte besides: instructions, descriptions of tensors, padding"))
    return [component for component in found if component.flash_bytes]


# --- tensors ----------------------------------------------------------------------------------------------------------


def _npu_tensors(program: Subject, found: list[Run]) -> list[TensorPlace]:
    places: list[TensorPlace] = []
    for run in found:
        part = program.parts[run.call.delegate] if run.call.delegate is not None else None
        if part is None or part.payload is None or not run.layers:
            continue
        first = run.layers[0].index
        if part.lowered is None or part.schedule is None:
            places += _of_stream(part, run)
            continue
        staged = part.staging_bytes > 0
        shapes = {value.name: value.shape for region in part.lowered.graph.regions() for op in region.ops for value in op.results}
        shapes |= {value.name: value.shape for value in part.lowered.graph.inputs}
        for planned in part.schedule.tensors():
            places.append(
                TensorPlace(
                    planned.name,
                    "staging" if staged and planned.memory == SRAM else "scratch",
                    part.number,
                    planned.address,
                    planned.size_bytes,
                    first + planned.first,
                    first + planned.last,
                    2 * first + planned.begins,
                    2 * first + planned.ends,
                    planned.dtype,
                    shapes.get(planned.name, ()),
                    planned.layout,
                    planned.origin.module,
                    planned.origin.source,
                )
            )
    return places


def _of_stream(part: Part, run: Run) -> list[TensorPlace]:
    """The tensors that the commands of a payload tell of, under the names of the layers that write them."""
    assert part.payload is not None
    ends = {t.offset: f"input {number}" for number, t in enumerate(part.payload.inputs)}
    first = run.layers[0].index
    places = []
    for tensor in stream_tensors(part):
        if tensor.region not in (SCRATCH_REGION, STAGING_REGION):
            continue
        maker = run.layers[tensor.first]
        name = maker.name if tensor.dtype else f"weights of {maker.name}"
        if not tensor.first and not tensor.dtype and tensor.region == SCRATCH_REGION and tensor.start in ends:
            name = f"delegate {part.number} {ends[tensor.start]}"
        begin, end = first + tensor.first, first + tensor.last
        places.append(
            TensorPlace(
                name,
                REGIONS[tensor.region],
                part.number,
                tensor.start,
                tensor.end - tensor.start,
                begin,
                end,
                2 * begin,
                2 * end + 1,
                tensor.dtype,
                (),
                tensor.layout,
                maker.module,
                maker.source,
            )
        )
    return places


def _arena_tensors(program: Subject, found: list[Run]) -> list[TensorPlace]:
    """The tensors of ExecuTorch's plan, each alive from the call that writes it to the last that reads it."""
    count = sum(len(run.layers) for run in found)
    alive: dict[int, tuple[int, int]] = {}
    origins: dict[int, tuple[str, str]] = {}
    names: dict[int, str] = {}
    for run in found:
        if not run.layers:
            continue
        first, last = run.layers[0].index, run.layers[-1].index
        named = next((layer for layer in reversed(run.layers) if layer.module), run.layers[-1])
        for arg in run.call.args:
            for number, _ in program.tensors_of(arg):
                begin, _end = alive.get(number, (first, last))
                alive[number] = (begin, last)
                origins.setdefault(number, (named.module, named.source))
        names |= _results(program, run)
    for number in program.method.inputs:
        alive[number] = (0, alive.get(number, (0, 0))[1])
        origins[number] = ("", "")
    for number in program.method.outputs:
        alive[number] = (alive.get(number, (0, 0))[0], max(count - 1, 0))
    places = []
    for number, value in enumerate(program.method.values):
        if value.kind != "tensor" or value.place is None:
            continue
        if value.constant or number in program.states:  # kept from run to run
            alive[number], origins[number] = (0, max(count - 1, 0)), ("", "")
        memory_number, offset = value.place
        name = program.ends(number)
        module, line = origins.get(number, ("", ""))
        begins, ends = alive.get(number, (0, max(count - 1, 0)))
        places.append(
            TensorPlace(
                names.get(number, name) if name == f"value {number}" else name,
                f"arena_{memory_number}",
                None,
                offset,
                value.nbytes,
                begins,
                ends,
                2 * begins,
                2 * ends + 1,
                value.dtype,
                value.shape,
                "",
                module,
                line,
            )
        )
    return places


def _results(program: Subject, run: Run) -> dict[int, str]:
    """Names of what a call writes: by the output of the delegate, or by the layer."""
    if run.call.delegate is None:
        return {number: run.layers[0].name for number, _ in ends_of(program, run.call)[1]}
    payload = program.parts[run.call.delegate].payload
    given = run.call.args[len(payload.inputs) :] if payload is not None else ()
    return {number: f"delegate {run.call.delegate} output {position}" for position, number in enumerate(given)}

"""Compute the RAM and flash of the whole application.

The figures apply to ExecuTorch and Arm's delegate on a Cortex-M. Stacks are not counted, because they depend on the firmware.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from ethorch.backend.emit.build import Build
from ethorch.figures.layers import Run, ends_of, runs
from ethorch.figures.memory_report import DRAM, FLASH, RAM, SRAM, Component, MemoryReport, TensorPlace
from ethorch.figures.method_pool import (
    CORTEX_M,
    DELEGATE_HANDLE_BYTES,
    HOST,
    kernel_temporary_bytes,
    lookup_bytes,
    method_pool_bytes,
)
from ethorch.figures.stream_layers import stream_tensors, works
from ethorch.figures.subject import REGIONS, Part, Subject, subject
from ethorch.formats.payload import SCRATCH_REGION
from ethorch.npu.staging import STAGING_REGION
from ethorch.targets.compile_spec import EthosUCompileSpec


def memory(
    source: Build | bytes | str | os.PathLike[str],
    method: str = "forward",
    *,
    spec: EthosUCompileSpec | None = None,
    code: Component | None = None,
) -> MemoryReport:
    """Return the application's memory: components, totals and tensors.

    The size of staging memory is planned by Vela. For a .pte, it is the highest accessed address, which can be smaller.
    The NPU tensors of a .pte are derived from the command streams.

    Args:
        source, method, spec: See :func:`ethorch.figures.subject.subject`.
        code: Component for the firmware's code. Default: not counted.

    Raises:
        EthorchError, ProgramError, PayloadError, MachineFault: See :func:`ethorch.figures.subject.subject`.
    """
    program = subject(source, method, spec=spec)
    calls = runs(program)
    kernels = kernel_temporary_bytes(program.method)
    temporary, temporary_host = (
        max(_find_scratch_bytes(program), kernels, lookup_bytes(program.method, abi)) for abi in (CORTEX_M, HOST)
    )
    pool, pool_host = (method_pool_bytes(program.method, abi) for abi in (CORTEX_M, HOST))
    arenas = {f"arena_{number}": size for number, size in enumerate(program.method.memories) if number}
    by_delegate = {part.number: _region_sizes(part) for part in program.parts if part.payload is not None}
    regions = {name: max(sizes.get(name, 0) for sizes in by_delegate.values()) for name in _list_names(by_delegate.values())}
    npu_parts = [part for part in program.parts if part.payload is not None]
    return MemoryReport(
        components=(
            *_ram_components(program, arenas, regions, pool, temporary),
            *_flash_components(program),
            *([] if code is None else [code]),
        ),
        tensors=(*_npu_tensors(program, calls), *_arena_tensors(program, calls)),
        regions={**regions, **arenas},
        scratch_bytes=by_delegate,
        sram_bytes=max((_sum_sram(part) for part in npu_parts), default=0),
        constants_in_sram=any(part.memory_system is not None and part.memory_system.constants_in_sram for part in npu_parts),
        method_pool_bytes=pool,
        method_pool_bytes_host=pool_host,
        temporary_bytes=temporary,
        temporary_bytes_host=temporary_host,
        layer_count=sum(len(run.layers) for run in calls),
    )


# --- sizes ------------------------------------------------------------------------------------------------------------


def _find_scratch_bytes(program: Subject) -> int:
    # The temporary allocator is reset between delegates.
    return max((part.payload.scratch_bytes for part in program.parts if part.payload is not None), default=0)


def _region_sizes(part: Part) -> dict[str, int]:
    assert part.payload is not None
    sizes = {"scratch": part.payload.scratch_bytes, "staging": part.staging_bytes}
    return {name: size for name, size in sizes.items() if size}


def _list_names(sizes: Iterable[Mapping[str, int]]) -> list[str]:
    return list(dict.fromkeys(name for size_by_name in sizes for name in size_by_name))


def _sum_sram(part: Part) -> int:
    sizes, system = _region_sizes(part), part.memory_system
    if system is None:
        return sum(sizes.values())
    areas = {"scratch": system.arena_area, "staging": system.cache_area}
    return sum(size for name, size in sizes.items() if areas[name] == SRAM)


def _memory_of(program: Subject, region: int, otherwise: str) -> str:
    memories = {part.memory_of(region) for part in program.parts if part.payload is not None and part.memory_system is not None}
    return memories.pop() if len(memories) == 1 else otherwise


def _ram_components(
    program: Subject, arenas: Mapping[str, int], regions: Mapping[str, int], pool: int, temporary: int
) -> list[Component]:
    count = sum(1 for part in program.parts if part.payload is not None)
    scratch = regions.get("scratch", 0)
    components = [
        Component(
            "scratch", scratch, 0, _memory_of(program, SCRATCH_REGION, RAM),
            "feature maps, inputs and outputs of the NPU: region 1 of the largest delegate, in the temporary allocator",
        ),
        Component(
            "staging", regions.get("staging", 0), 0, _memory_of(program, STAGING_REGION, SRAM),
            "fast scratch memory of the NPU: region 2 of the largest delegate, in a firmware buffer",
        ),
        Component(
            "temporary", temporary - scratch, 0, RAM,
            "additional bytes of ExecuTorch's temporary allocator, for kernels and kernel lookup",
        ),
        *(
            Component(name, size, 0, RAM, "planned by ExecuTorch: inputs, outputs, CPU tensors, mutable buffers")
            for name, size in arenas.items()
        ),
        Component(
            "unplanned_io", _sum_unplanned_io(program), 0, RAM, "inputs and outputs in application buffers"
        ),
        Component(
            "method_pool", pool, 0, RAM,
            "ExecuTorch's method allocator after the method is loaded, with 32-bit structures",
        ),
        Component(
            "delegate_handles", count * DELEGATE_HANDLE_BYTES, 0, RAM, "heap memory that Arm's delegate allocates for each delegate"
        ),
    ]  # fmt: skip
    return [component for component in components if component.ram_bytes]


def _sum_unplanned_io(program: Subject) -> int:
    ends = dict.fromkeys((*program.method.inputs, *program.method.outputs))
    values = (program.method.values[index] for index in ends)
    return sum(value.nbytes for value in values if value.kind == "tensor" and not value.planned and not value.constant)


def _flash_components(program: Subject) -> list[Component]:
    payloads = list(dict.fromkeys(part.payload for part in program.parts if part.payload is not None))
    weights, commands = sum(len(p.weights) for p in payloads), sum(len(p.commands) for p in payloads)
    shared = _memory_of(program, 0, FLASH)
    in_ram = shared in (SRAM, DRAM)
    note = "weights, scales and tables of the NPU: region 0, compressed by Vela"
    if in_ram:
        note += f"; counted in RAM and flash, because firmware copies the weights to {shared} in this memory mode"
    constants = sum(len(data) for data in program.program.constants)
    mutable = sum(len(data) for segment in program.program.mutable for data in segment)
    named = sum(len(data) for data in program.program.named.values())
    components = [
        Component("weights", weights if in_ram else 0, weights, shared, note),
        Component("command_streams", 0, commands, FLASH, "NPU commands, including the driver header"),
        Component("constant_tensors", 0, constants, FLASH, "constants of CPU operators"),
        Component("mutable_tensors", 0, mutable, FLASH, "initial values of mutable buffers"),
        Component("named_data", 0, named, FLASH, "data that delegates look up by name"),
    ]
    rest_bytes = len(program.pte) - sum(component.flash_bytes for component in components)
    components.append(
        Component("program", 0, rest_bytes, FLASH, "all other bytes of the .pte: instructions, tensor descriptions, padding")
    )
    return [component for component in components if component.flash_bytes]


# --- tensors ----------------------------------------------------------------------------------------------------------


def _npu_tensors(program: Subject, calls: list[Run]) -> list[TensorPlace]:
    places: list[TensorPlace] = []
    time = 0
    for run in calls:
        part = program.parts[run.call.delegate] if run.call.delegate is not None else None
        if part is None or part.payload is None or not run.layers:
            continue
        first = run.layers[0].index
        if part.lowered is None or part.schedule is None or part.lowered.compiled.passes:
            numbers = _number_works(part, run)
            places += _stream_tensors(part, run, numbers, time)
            time += 2 * len(numbers)
            continue
        planned_tensors = part.schedule.tensors()
        staged = part.staging_bytes > 0
        shapes = {value.name: value.shape for region in part.lowered.graph.regions() for op in region.ops for value in op.results}
        shapes |= {value.name: value.shape for value in part.lowered.graph.inputs}
        for planned in planned_tensors:
            places.append(
                TensorPlace(
                    planned.name,
                    "staging" if staged and planned.memory == SRAM else "scratch",
                    part.number,
                    planned.address,
                    planned.size_bytes,
                    first + planned.first,
                    first + planned.last,
                    time + planned.begins,
                    time + planned.ends,
                    planned.dtype,
                    shapes.get(planned.name, ()),
                    planned.layout,
                    planned.origin.module,
                    planned.origin.source,
                )
            )
        time += 1 + max((planned.ends for planned in planned_tensors), default=0)
    return places


def _stream_tensors(part: Part, run: Run, numbers: Sequence[int], time: int) -> list[TensorPlace]:
    assert part.payload is not None
    ends = {t.offset: f"input {number}" for number, t in enumerate(part.payload.inputs)}
    first = run.layers[0].index
    places = []
    for tensor in stream_tensors(part):
        if tensor.region not in (SCRATCH_REGION, STAGING_REGION):
            continue
        writer = run.layers[numbers[tensor.first]]
        name = writer.name if tensor.dtype else f"weights for {writer.name}"
        if not tensor.first and not tensor.dtype and tensor.region == SCRATCH_REGION and tensor.start in ends:
            name = f"delegate {part.number} {ends[tensor.start]}"
        begin, end = first + numbers[tensor.first], first + numbers[tensor.last]
        places.append(
            TensorPlace(
                name,
                REGIONS[tensor.region],
                part.number,
                tensor.start,
                tensor.end - tensor.start,
                begin,
                end,
                time + 2 * tensor.first,
                time + 2 * tensor.last + 1,
                tensor.dtype,
                (),
                tensor.layout,
                writer.module,
                writer.source,
            )
        )
    return places


def _number_works(part: Part, run: Run) -> list[int]:
    """Return, for each item of :func:`works`, the position of its layer in the delegate call."""
    if part.schedule is None:
        return list(range(len(run.layers)))
    ends = sorted((end, number) for number, row in enumerate(part.schedule.rows) for end in row.command_offsets)
    positions = (bisect_left(ends, (work.offsets[-1], -1)) for work in works(part))
    return [ends[min(position, len(ends) - 1)][1] for position in positions]


def _arena_tensors(program: Subject, calls: list[Run]) -> list[TensorPlace]:
    count = sum(len(run.layers) for run in calls)
    alive: dict[int, tuple[int, int]] = {}
    origins: dict[int, tuple[str, str]] = {}
    names: dict[int, str] = {}
    for run in calls:
        if not run.layers:
            continue
        first, last = run.layers[0].index, run.layers[-1].index
        named_layer = next((layer for layer in reversed(run.layers) if layer.module), run.layers[-1])
        for arg in run.call.args:
            for number, _ in program.tensors_of(arg):
                begin, _end = alive.get(number, (first, last))
                alive[number] = (begin, last)
                origins.setdefault(number, (named_layer.module, named_layer.source))
        names |= _name_outputs(program, run)
    for number in program.method.inputs:
        alive[number] = (0, alive.get(number, (0, 0))[1])
        origins[number] = ("", "")
    for number in program.method.outputs:
        alive[number] = (alive.get(number, (0, 0))[0], max(count - 1, 0))
    places = []
    for number, value in enumerate(program.method.values):
        if value.kind != "tensor" or value.place is None:
            continue
        if value.constant or number in program.states:  # persists between runs
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


def _name_outputs(program: Subject, run: Run) -> dict[int, str]:
    if run.call.delegate is None:
        return {number: run.layers[0].name for number, _ in ends_of(program, run.call)[1]}
    payload = program.parts[run.call.delegate].payload
    outputs = run.call.args[len(payload.inputs) :] if payload is not None else ()
    return {number: f"delegate {run.call.delegate} output {position}" for position, number in enumerate(outputs)}

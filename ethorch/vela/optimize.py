"""Optimize the command stream of a delegate."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ethorch.formats.payload import IoTensor
from ethorch.npu import stream
from ethorch.npu.cycles import Estimate, list_traffic
from ethorch.npu.cycles.traffic import MAPS, SCALES, WEIGHTS, WRITE, Traffic
from ethorch.npu.ir.image import Image, Place
from ethorch.npu.ir.kernel_copies import find_kernel_copy
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import Optimized, optimize
from ethorch.support.errors import MachineFault
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import FAST, FREE, EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates
from ethorch.vela.compiled_model import CompiledModel, Performance, Tables, with_offsets

logger = logging.getLogger(__name__)

_SCRATCH, _STAGING = 1, 2  # regions (npu-reference 1.4)
#: Contents in columns of Vela's database, which counts transferred scales as weights.
_CONTENTS = {MAPS: "FeatureMap", WEIGHTS: "Weights", SCALES: "Weights"}


def optimize_model(model: CompiledModel, spec: EthosUCompileSpec) -> CompiledModel:
    """Return the optimized model. Return ``model`` if the stream is COP2, has branches, or is not changed by any pass."""
    passes = spec.stream_passes if model.command_stream[:4] == stream.COP1 else frozenset()
    while passes:
        context = _context(model, spec, passes)
        try:
            with stage("optimize commands"):
                optimized = optimize(model.command_stream, read_image(model), context)
        except MachineFault as error:  # e.g. branches
            logger.debug("the command stream is not optimized: %s", error)
            return model
        if optimized is None:
            return model
        if not optimized.rejected:
            return _renew(model, optimized, context, spec)
        logger.warning(
            "pass %s produced a command stream that the verifier rejects (%s). The pass is omitted. Please report this, and attach "
            "the model. [stream.rejected]",
            optimized.rejected,
            optimized.rejections[0],
        )
        passes -= {optimized.rejected}
    return model


def _context(model: CompiledModel, spec: EthosUCompileSpec, passes: frozenset[str]) -> Context:
    region, size = (_STAGING, model.scratch_fast_bytes) if model.scratch_fast_bytes else (_SCRATCH, model.scratch_bytes)
    limit = size if spec.arena == FREE else spec.arena_cache_bytes or size if spec.arena == FAST else int(spec.arena)
    largest = spec.arena_cache_bytes if spec.arena in (FAST, FREE) else min(int(spec.arena), spec.arena_cache_bytes)
    resident = max(min(spec.resident_bytes, largest - size), 0)
    is_dedicated = region == _STAGING and spec.arena == FREE
    # Without a size, the whole address space would be dedicated to the NPU.
    is_known = "--arena-cache-size" in spec.flags or spec.memory_system.arena_cache_bytes is not None
    grown = {region: spec.arena_cache_bytes} if is_dedicated and is_known else {}
    limits = {region: max(size, limit)}
    return Context(read_memory_rates(spec), limits, grown, passes=passes, resident_bytes=resident)


def read_image(model: CompiledModel) -> Image:
    sizes = {_SCRATCH: model.scratch_bytes, _STAGING: model.scratch_fast_bytes}
    constants = np.frombuffer(model.constants, np.uint8)
    return Image(constants, {n: size for n, size in sizes.items() if size}, _places(model.inputs), _places(model.outputs))


def _places(tensors: Sequence[IoTensor]) -> tuple[Place, ...]:
    return tuple((tensor.region, tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors)


def _renew(model: CompiledModel, optimized: Optimized, context: Context, spec: EthosUCompileSpec) -> CompiledModel:
    image = optimized.stream.image
    before, after = context.estimate(optimized.before), context.estimate(optimized.stream)
    origins = _find_origins(optimized)
    offsets = _map_offsets(optimized, origins)
    moved = with_offsets(model.tables, lambda offset: offsets.get(offset, offset))
    changed = replace(
        model,
        command_stream=optimized.encoded.payload,
        constants=image.constants.tobytes(),
        scratch_bytes=image.sizes.get(_SCRATCH, 0),
        scratch_fast_bytes=image.sizes.get(_STAGING, 0),
        inputs=_move(model.inputs, image.inputs),
        outputs=_move(model.outputs, image.outputs),
        load_tables=lambda: moved,
        passes=optimized.effects,
        before_passes=model,
    )
    row_of = _find_rows(model)
    new_rows = {key: row_of(origin) for key, origin in origins.items()}
    old_rows = {op.key: row_of(op.key) for op in optimized.before.ops}
    tables = _update_rows(moved, "perf", _sum_cycles(after, new_rows), _sum_cycles(before, old_rows))
    new, old = (
        list_traffic(stream, context.regions, context.rate_operators(stream)) for stream in (optimized.stream, optimized.before)
    )
    tables = _update_rows(tables, "perf_debug", _sum_traffic(new, new_rows), _sum_traffic(old, old_rows))
    return replace(changed, load_tables=lambda: tables, performance=_update_performance(changed, before, after, spec))


def _move(tensors: Sequence[IoTensor], places: Sequence[Place]) -> tuple[IoTensor, ...]:
    return tuple(replace(tensor, region=place[0], offset=place[1]) for tensor, place in zip(tensors, places, strict=True))


def _find_origins(optimized: Optimized) -> dict[int, int]:
    # Maps the keys of optimized operations to those of the original operations. A new operation maps to the operation that it
    # replaces, or to the next one.
    remaining = {op.origin for op in optimized.stream.ops}
    decoded = [op.key for op in optimized.before.ops if op.key in remaining or not find_kernel_copy(op)]
    before = dict(pairwise(reversed(decoded)))
    following, origins = decoded[-1], {}
    for op in reversed(optimized.stream.ops):
        if op.origin is not None:
            following = op.origin
            origins[op.key] = following
        else:
            previous = before.get(following)
            origins[op.key] = following if previous is None or previous in remaining else previous
    return origins


def _map_offsets(optimized: Optimized, origins: Mapping[int, int]) -> dict[int, int]:
    """Map each original operation to the byte offset of its last replacement, or to the preceding operation's offset if removed."""
    encoded = optimized.encoded.offsets
    last = {origins[op.key]: encoded[op.key] for op in optimized.stream.ops}
    offset, offsets = encoded[optimized.stream.ops[0].key], {}
    for op in optimized.before.ops:
        offset = offsets[op.key] = last.get(op.key, offset)
    return offsets


def _sum_cycles(cycles: Estimate, rows: Mapping[int, str]) -> Counter[tuple[str, str]]:
    sums = Counter[tuple[str, str]]()
    for operator in cycles.operators:
        accesses = {f"{name}_ac": count for name, count in operator.access_cycles.items()}
        for column, count in {"op_cycles": operator.cycles, "npu_cycles": operator.npu_cycles, **accesses}.items():
            sums[rows[operator.keys[-1]], column] += count
    return sums


def _sum_traffic(traffic: Iterable[tuple[int, Traffic]], rows: Mapping[int, str]) -> Counter[tuple[str, str]]:
    sums = Counter[tuple[str, str]]()
    for key, access in traffic:
        way = "write" if access.channel == WRITE else "read"
        sums[rows[key], f"{access.memory.name}{_CONTENTS[access.content]}_{way}"] += access.size_bytes
    return sums


def _find_rows(model: CompiledModel) -> Callable[[int], str]:
    """Return a function that returns the id of the operation in Vela's schedule with a given command offset."""
    header, rows = model.tables["perf"]
    ids = [row[header.index("id")] for row in rows]
    ends = sorted((end, id) for id, row in zip(ids, model.rows(), strict=True) for end in row.command_offsets)
    return lambda offset: ends[min(bisect_left(ends, (offset, "")), len(ends) - 1)][1]


def _update_rows(tables: Tables, name: str, new: Counter[tuple[str, str]], old: Counter[tuple[str, str]]) -> Tables:
    header, rows = tables.get(name, ([], []))
    updated = [dict(zip(header, row, strict=True)) for row in rows]
    cells = {row["id"]: row for row in reversed(updated)}
    for id, column in {*new, *old}:
        change = new[id, column] - old[id, column]
        if change and column in cells.get(id, {}):
            cells[id][column] = str(max(int(cells[id][column] or 0) + change, 0))
    return {**tables, name: (header, [list(row.values()) for row in updated])}


def _update_performance(changed: CompiledModel, before: Estimate, after: Estimate, spec: EthosUCompileSpec) -> Performance:
    model = changed.before_passes
    assert model is not None
    performance, sizes = model.performance, Counter[str]()
    sizes[spec.memory_system.arena_area] += changed.scratch_bytes - model.scratch_bytes
    sizes[spec.memory_system.cache_area] += changed.scratch_fast_bytes - model.scratch_fast_bytes
    peak_bytes = {name: max(size + sizes[name], 0) for name, size in performance.peak_bytes.items()}
    npu = sum(operator.npu_cycles for operator in after.operators) - sum(operator.npu_cycles for operator in before.operators)
    return replace(
        performance,
        npu_cycles=performance.npu_cycles + npu,
        total_cycles=performance.total_cycles + after.cycles - before.cycles,
        peak_bytes=peak_bytes,
    )

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from pathlib import Path

from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.insert_copies import copy_outputs
from ethorch.lower.rewrite.pipeline import dump_to, rewrite
from ethorch.lower.rewrite.planes import bytes_beside_pixels, copy_selected_inputs, read_planes, smallest_plane
from ethorch.npu.cycles.memories import ARENA, CONSTANTS, STAGING
from ethorch.npu.cycles.model import rate_contention
from ethorch.npu.registers import find_npu
from ethorch.support.errors import VelaError
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import FAST, FREE, ArmCompileSpec, EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates
from ethorch.targets.npus import Target
from ethorch.targets.tosa_spec import TosaTarget
from ethorch.targets.tuning import ReadPlanes, Tuning
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.vela import arena, artifacts
from ethorch.vela.bands import split_into_bands
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.compiler import compile
from ethorch.vela.diagnose import explain_refusal
from ethorch.vela.lowered import Lowered
from ethorch.vela.optimize import optimize_model
from ethorch.vela.planes import with_planes

logger = logging.getLogger(__name__)

_SURE = 0.8  # share of the arena up to which reading NCHW is faster (docs/benchmarks.md)
_FEWEST_SURE_PLACES = 160  # elements of a plane from which it is faster even if the weights are in DRAM


def builder_for(target: Target | TosaTarget) -> Builder:
    return Builder(target.limits, tuning=target.tuning, target=target.name, floats=target.floats, integers=target.integers)


def rewritten(graph: Graph, tuning: Tuning, spec: ArmCompileSpec) -> Graph:
    """Apply the target's rewrites to ``graph``, and return the verified graph.

    If ``spec.path_for_intermediates`` is set, the folder ``delegate_N.steps`` contains the graph before the rewrites and
    after each change.
    """
    folder = spec.path_for_intermediates
    return rewrite(
        graph, tuning, dump=None if folder is None else dump_to(artifacts.next_delegate(Path(folder)).with_suffix(".steps"))
    )


def adapt_tuning(tuning: Tuning, spec: ArmCompileSpec) -> Tuning:
    """Return the tuning without rewrites that save no cycles with the memories and stream passes of ``spec``."""
    if tuning.split_weights is None or (isinstance(spec, EthosUCompileSpec) and _can_transfer_while_reading(spec)):
        return tuning
    return replace(tuning, split_weights=None)


def _can_transfer_while_reading(spec: EthosUCompileSpec) -> bool:
    """Return True if weights can be transferred to faster memory while kernels read other weights."""
    regions, memory = read_memory_rates(spec), spec.memory_system
    fast = regions[STAGING if memory.staged else ARENA]
    is_faster = fast.bytes_per_cycle > regions[CONSTANTS].bytes_per_cycle
    return "early-transfers" in spec.stream_passes and is_faster and rate_contention(find_npu(spec.target.name), regions) < 1


def _check_arena(compiled: CompiledModel, spec: EthosUCompileSpec) -> None:
    limit = spec.flags.get("--arena-cache-size")
    size = compiled.scratch_fast_bytes or compiled.scratch_bytes
    if limit is not None and size > limit:
        logger.warning(
            "the NPU's arena needs %s bytes, %s more than --arena-cache-size allows, because Vela found no schedule that fits. "
            "Program.memory.peak_owners lists the tensors to reduce. [vela.arena_exceeded]",
            f"{size:,}",
            f"{size - limit:,}",
        )


def compile_lowered(graph: Graph, tuning: Tuning, spec: EthosUCompileSpec) -> Lowered:
    """Rewrite, compile and verify a lowered TOSA graph. The graph is modified in place.

    Inputs are read in NCHW layout (``lower.rewrite.planes``) if this probably saves cycles. If the arena exceeds ``spec.arena``,
    operators are split into bands of rows (``vela.bands``). Unless ``spec.verify`` is False, wrong results are corrected by
    omitting stream passes or inserting copies (``vela.repair``).

    Raises:
        VelaError: Vela rejected the graph.
        VerificationError: The commands and the graph compute different results, even with copies.
    """
    by_flags = not {"--arena-cache-size", "--optimise"}.isdisjoint(spec.flags)
    limit = None if by_flags or spec.arena in (FAST, FREE) else int(spec.arena)
    source, tuning = graph.copy(), adapt_tuning(tuning, spec)
    result = _compile_faster_layout(graph, tuning, spec)
    if limit is not None and arena.arena_bytes(result.compiled) > limit:
        result = _compile_bands(source, tuning, spec, result, limit)
    result = replace(result, source=source)
    if spec.verify:
        result = _repair(result, spec)
    return replace(result, compiled=replace(result.compiled, before_passes=None))


def _repair(lowered: Lowered, spec: EthosUCompileSpec) -> Lowered:
    """Correct a delegate with wrong results. To save time, omit stream passes while searching for repairs."""
    from ethorch.vela.repair import repair_delegate  # saves 0.05 s without verification

    plain = copy.copy(spec)
    plain.stream_passes = frozenset()
    result = repair_delegate(lowered, lambda changed: _compile(changed, plain))
    if not result.repairs or not spec.stream_passes:
        return result
    optimized = replace(result, compiled=optimize_model(result.compiled, spec))
    return repair_delegate(optimized, lambda changed: _compile(changed, plain))


def _compile_bands(graph: Graph, tuning: Tuning, spec: EthosUCompileSpec, usual: Lowered, limit: int) -> Lowered:
    smallest = copy.copy(spec)
    smallest.arena, smallest.flags = FAST, {**spec.flags, "--optimise": "Size"}
    cache = arena.SearchCache(serialize(graph), *arena.cache_keys(spec), "bands")
    banded = split_into_bands(graph, usual.compiled, lambda part: compile(serialize(rewrite(part, tuning)), smallest), limit, cache)
    if banded is None:
        return usual
    try:
        lowered = compile_graph(rewritten(banded, tuning, spec), spec)
    except VelaError:
        return usual
    return lowered if arena.arena_bytes(lowered.compiled) < arena.arena_bytes(usual.compiled) else usual


def _compile_faster_layout(graph: Graph, tuning: Tuning, spec: EthosUCompileSpec) -> Lowered:
    way = tuning.read_planes
    places = 0 if way is None else smallest_plane(graph, way.most)
    if way is None or not places:
        return compile_graph(rewritten(graph, tuning, spec), spec)
    share = _arena_share(graph, way, spec)
    if share > 1:
        return compile_graph(rewritten(graph, tuning, spec), spec)
    cache = arena.SearchCache(serialize(graph), *arena.cache_keys(spec), f"planes {way}")
    is_cached, answer = (True, 1) if share < _SURE and places >= _FEWEST_SURE_PLACES else cache.get()
    planar = _compile_planes(graph, tuning, way, spec) if answer or not is_cached else None
    if planar is not None and answer:
        return planar
    transposed = compile_graph(rewritten(graph, tuning, spec), spec)
    better = planar is not None and planar.performance.total_cycles < transposed.performance.total_cycles
    cache.put(int(better))
    return planar if planar is not None and better else transposed


def _arena_share(graph: Graph, way: ReadPlanes, spec: EthosUCompileSpec) -> float:
    memory = spec.memory_system
    if not memory.staged:
        return 0.0 if memory.arena_area == "Sram" else 1.0
    limit = spec.arena_cache_bytes if spec.arena in (FAST, FREE) else min(int(spec.arena), spec.arena_cache_bytes)
    return bytes_beside_pixels(graph, way.most) / limit


def _compile_planes(graph: Graph, tuning: Tuning, way: ReadPlanes, spec: EthosUCompileSpec) -> Lowered | None:
    reference = rewrite(graph.copy(), replace(tuning, fold_strides=way.fold))
    copy_selected_inputs(reference, way.most)
    planar, planes = read_planes(reference, way.most)
    if not planes:
        return None
    try:
        with stage(f"Vela, {len(planar.ops)} TOSA operators"):
            compiled = with_planes(arena.compile_with_arena(serialize(planar), spec), planar, reference, planes, spec)
    except VelaError:
        return None
    return None if compiled is None else _finish(reference, serialize(reference), compiled, spec)


def compile_graph(graph: Graph, spec: EthosUCompileSpec) -> Lowered:
    """Compile a rewritten TOSA graph, and copy outputs that Vela would drop. Raise VelaError if Vela rejects the graph."""
    try:
        return _compile(graph, spec)
    except VelaError as error:
        if error.lost_output:
            try:
                return _compile(copy_outputs(graph), spec)
            except VelaError:
                logger.debug("Vela also refuses the graph with copied outputs")
        raise explain_refusal(error, graph, spec) from error


def _compile(graph: Graph, spec: EthosUCompileSpec) -> Lowered:
    tosa = serialize(graph)
    with stage(f"Vela, {len(graph.ops)} TOSA operators"):
        compiled = arena.compile_with_arena(tosa, spec)
    return _finish(graph, tosa, compiled, spec)


def _finish(graph: Graph, tosa: bytes, compiled: CompiledModel, spec: EthosUCompileSpec) -> Lowered:
    compiled = optimize_model(compiled, spec)
    _check_arena(compiled, spec)
    return Lowered(graph, graph, tosa, compiled)

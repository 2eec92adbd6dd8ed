"""Rewrite the TOSA graph of a delegate, have Vela compile it, and check the result."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from pathlib import Path

from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.insert_copies import copy_outputs
from ethorch.lower.rewrite.pipeline import dump_to, rewrite
from ethorch.lower.rewrite.planes import bytes_beside_pixels, copy_selected_inputs, turned_inputs, without_turned_inputs
from ethorch.support.errors import VelaError
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import FAST, FREE, ArmCompileSpec, EthosUCompileSpec
from ethorch.targets.npus import Target
from ethorch.targets.tosa_spec import TosaTarget
from ethorch.targets.tuning import ReadPlanes, Tuning
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.vela import arena, artifacts
from ethorch.vela.bands import with_bands
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.compiler import compile
from ethorch.vela.diagnose import explained
from ethorch.vela.lowered import Lowered
from ethorch.vela.planes import with_planes
from ethorch.vela.repair import repaired
from ethorch.vela.resident import with_resident_weights

logger = logging.getLogger(__name__)

_SURE = 0.8  # of the staging memory: where pixels and what is made of them take less, planes are read faster (docs/benchmarks.md)


def builder_for(target: Target | TosaTarget) -> Builder:
    """An empty Builder that checks what ``target`` can run and is tuned for it."""
    return Builder(target.limits, tuning=target.tuning, target=target.name, floats=target.floats, integers=target.integers)


def rewritten(graph: Graph, tuning: Tuning, spec: ArmCompileSpec) -> Graph:
    """The graph as the target likes it, verified.

    In the folder of ``spec.dump_intermediate_artifacts_to``, if it names one, ``delegate_0.steps`` holds the graph as text: as it
    was lowered, and after each step of ``lower.rewrite.pipeline`` that changed it.
    """
    folder = spec.path_for_intermediates
    return rewrite(
        graph, tuning, dump=None if folder is None else dump_to(artifacts.next_delegate(Path(folder)).with_suffix(".steps"))
    )


def _check_arena(compiled: CompiledModel, spec: EthosUCompileSpec) -> None:
    """Warn where the user's limit does not hold: to Vela it is a wish."""
    limit = spec.flags.get("--arena-cache-size")
    found = compiled.scratch_fast_bytes or compiled.scratch_bytes
    if limit is not None and found > limit:
        logger.warning(
            "the NPU's arena takes %s bytes, %s more than --arena-cache-size allows: Vela found no schedule that fits. "
            "Program.memory.peak_owners names the tensors to make smaller. [vela.arena_exceeded]",
            f"{found:,}",
            f"{found - limit:,}",
        )


def compile_lowered(graph: Graph, tuning: Tuning, spec: EthosUCompileSpec) -> Lowered:
    """A TOSA graph as it was lowered: rewritten, and through Vela.

    An input in planes is read as it lies (``lower.rewrite.planes``) where that takes fewer cycles; which way is better is kept in
    the user's cache. Where a limit for the arena does not hold, bands of rows are tried. Unless ``spec.verify`` is False, the
    result is compared with the graph on random inputs, and mended by copies if it differs (``vela.repair``).

    Args:
        graph: is changed.

    Raises:
        VelaError: Vela declined the graph; the operators it declines by themselves are named with their source lines.
        VerificationError: The commands compute something else than the graph, and no copies mend it.
    """
    by_flags = not {"--arena-cache-size", "--optimise"}.isdisjoint(spec.flags)
    limit = None if by_flags or spec.arena in (FAST, FREE) else int(spec.arena)
    source = graph.copy()
    result = _in_either_way(graph, tuning, spec)
    if limit is not None and arena.arena_bytes(result.compiled) > limit:
        result = _in_bands(source, tuning, spec, result, limit)
    result = replace(result, source=source)
    return repaired(result, lambda changed: _compiled(changed, spec)) if spec.verify else result


def _in_bands(graph: Graph, tuning: Tuning, spec: EthosUCompileSpec, usual: Lowered, limit: int) -> Lowered:
    """The program with parts in bands of rows (``lower.rewrite.split_rows``), where its arena is smaller than the usual one's."""
    smallest = copy.copy(spec)
    smallest.arena, smallest.flags = FAST, {**spec.flags, "--optimise": "Size"}
    known = arena.Known(serialize(graph), *arena.keys(spec), "bands")
    given = with_bands(graph, usual.compiled, lambda made: compile(serialize(rewrite(made, tuning)), smallest), limit, known)
    if given is None:
        return usual
    try:
        found = compile_graph(rewritten(given, tuning, spec), spec)
    except VelaError:
        return usual
    return found if arena.arena_bytes(found.compiled) < arena.arena_bytes(usual.compiled) else usual


def _in_either_way(graph: Graph, tuning: Tuning, spec: EthosUCompileSpec) -> Lowered:
    """With its inputs turned, or read in planes: whichever takes fewer cycles.

    Turned pixels are few bytes each, and slow to read from DRAM. Where they and what is made of them have much room in SRAM, planes
    are always faster; where they have none, never: only in between both are compiled, and the cache keeps which was better.
    """
    way = tuning.read_planes
    if way is None or not turned_inputs(graph, way.most):
        return compile_graph(rewritten(graph, tuning, spec), spec)
    filled = _filled(graph, way, spec)
    if filled > 1:
        return compile_graph(rewritten(graph, tuning, spec), spec)
    known = arena.Known(serialize(graph), *arena.keys(spec), f"planes {way}")
    found, answer = (True, 1) if filled < _SURE else known.get()
    read = _reading_planes(graph, tuning, way, spec) if answer or not found else None
    if read is not None and answer:
        return read
    other = compile_graph(rewritten(graph, tuning, spec), spec)
    better = read is not None and read.performance.total_cycles < other.performance.total_cycles
    known.put(int(better))
    return read if read is not None and better else other


def _filled(graph: Graph, way: ReadPlanes, spec: EthosUCompileSpec) -> float:
    """How much of the arena in SRAM the pixels take, with what is made of them: 0 where Vela may take as much as it likes."""
    memory = spec.memory_system
    if not memory.staged:
        return 0.0 if memory.arena_area == "Sram" else 1.0
    limit = spec.arena_cache_bytes if spec.arena in (FAST, FREE) else min(int(spec.arena), spec.arena_cache_bytes)
    return bytes_beside_pixels(graph, way.most) / limit


def _reading_planes(graph: Graph, tuning: Tuning, way: ReadPlanes, spec: EthosUCompileSpec) -> Lowered | None:
    """The program in which convolutions read what comes in planes; None where Vela leaves no way to."""
    meant = rewrite(graph.copy(), replace(tuning, fold_strides=way.fold))
    copy_selected_inputs(meant, way.most)
    given, planes = without_turned_inputs(meant, way.most)
    if not planes:
        return None
    try:
        with stage(f"Vela, {len(given.ops)} TOSA operators"):
            compiled = with_planes(arena.searched(serialize(given), spec), given, meant, planes, spec)
    except VelaError:
        return None
    return None if compiled is None else _finished(meant, serialize(meant), compiled, spec)


def compile_graph(graph: Graph, spec: EthosUCompileSpec) -> Lowered:
    """A rewritten TOSA graph through Vela.

    Where Vela loses an output, it gets the graph once more, with outputs that are read inside as copies.

    Raises:
        VelaError: Vela declined the graph; the operators it declines by themselves are named with their source lines.
    """
    try:
        return _compiled(graph, spec)
    except VelaError as error:
        if error.lost_output:
            try:
                return _compiled(copy_outputs(graph), spec)
            except VelaError:
                logger.debug("with copies of its outputs, Vela declines the graph too")
        raise explained(error, graph, spec) from error


def _compiled(graph: Graph, spec: EthosUCompileSpec) -> Lowered:
    tosa = serialize(graph)
    with stage(f"Vela, {len(graph.ops)} TOSA operators"):
        compiled = arena.searched(tosa, spec)
    return _finished(graph, tosa, compiled, spec)


def _finished(graph: Graph, tosa: bytes, compiled: CompiledModel, spec: EthosUCompileSpec) -> Lowered:
    _check_arena(compiled, spec)
    if spec.resident_bytes:
        compiled = with_resident_weights(compiled, spec, spec.resident_bytes)
    return Lowered(graph, graph, tosa, compiled)

"""Split subgraphs into bands of rows if no schedule found by Vela fits the arena limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.lower.rewrite.split_rows import Part, parts, split_rows
from ethorch.support.errors import VelaError
from ethorch.support.progress import stage
from ethorch.tosa.ir import Graph
from ethorch.vela import arena
from ethorch.vela.compiled_model import CompiledModel

#: Function that compiles a lowered graph with the smallest arena.
Smallest = Callable[[Graph], CompiledModel]

_COUNTS = (2, 4, 8)
_ROUNDS = 2  # maximum number of successive splits
_TRIES = 6  # compilations in each round
_MOST_WORK = 2.0  # maximum work, relative to the unsplit Part
_WORTH = 0.04  # minimum share of the arena that a split must save
_AT_THE_PEAK = 0.95  # share of the peak at which an operation counts as part of the peak
_BITS = 20  # bits per split in a cache entry


@dataclass(frozen=True)
class Way:
    """A way to split one ``Part`` of a graph into bands of rows.

    Attributes:
        number: Index of the Part in ``parts(graph)``.
        count: Index into ``_COUNTS``, which contains the possible numbers of bands.
    """

    number: int
    count: int
    part: Part

    @property
    def code(self) -> int:
        return 1 + self.number * len(_COUNTS) + self.count


def split_into_bands(graph: Graph, first: CompiledModel, smallest: Smallest, limit: int, cache: arena.SearchCache) -> Graph | None:
    """Return a copy of the graph in which subgraphs are split into bands of rows, or None if no split reduces the arena.

    Args:
        first: ``graph``, compiled with the smallest arena.
        limit: Arena limit in bytes.
    """
    is_cached, code = cache.get()
    if is_cached:
        return _decode(graph, code or 0)
    best, size, codes = graph, arena.arena_bytes(first), 0
    for turn in range(_ROUNDS):
        with stage("try bands of rows"):
            better = _better(best, first, size, smallest, limit)
        if better is None:
            break
        best, first, code = better
        size, codes = arena.arena_bytes(first), codes | code << (_BITS * turn)
        if size <= limit:
            break
    cache.put(codes)
    return best if codes else None


def _decode(graph: Graph, codes: int) -> Graph | None:
    banded = None
    while codes:
        number, count = divmod((codes & (1 << _BITS) - 1) - 1, len(_COUNTS))
        part = next((part for at, part in enumerate(parts(banded or graph)) if at == number), None)
        if part is None:
            return None
        banded = apply_bands(banded or graph, Way(number, count, part))
        codes >>= _BITS
    return banded


def _better(
    graph: Graph, before: CompiledModel, size: int, smallest: Smallest, limit: int
) -> tuple[Graph, CompiledModel, int] | None:
    best: tuple[Graph, CompiledModel, int] | None = None
    for way in _ways(graph, before, size, limit):
        banded = apply_bands(graph, way)
        try:
            model = smallest(banded.copy())
        except VelaError:
            continue
        if arena.arena_bytes(model) < size:
            best, size = (banded, model, way.code), arena.arena_bytes(model)
        if size <= limit:
            break
    return best


def _ways(graph: Graph, before: CompiledModel, size: int, limit: int) -> Iterator[Way]:
    peak = before.around_peak(_AT_THE_PEAK)
    ranked = []
    for number, part in enumerate(parts(graph)):
        if peak.isdisjoint(op.result.name for op in part.ops):
            continue
        full = part.alive_bytes(1)
        for count, bands in enumerate(_COUNTS):
            alive, work = part.alive_bytes(bands), part.work(bands)
            saved = min(full, size) - alive
            if bands * 2 <= part.result.shape[1] and saved > _WORTH * size and work <= _MOST_WORK:
                short = alive > limit or full - alive < size - limit
                ranked.append(((short, -saved if short else work, alive), Way(number, count, part)))
    ranked.sort(key=lambda entry: entry[0])
    return (way for _, way in ranked[:_TRIES])


def apply_bands(graph: Graph, way: Way) -> Graph:
    copied = graph.copy()
    now = {value.name: value for op in copied.ops for value in (*op.operands, *op.results)}
    places = {id(op): number for number, op in enumerate(graph.ops)}
    part = Part(
        tuple(copied.ops[places[id(op)]] for op in way.part.ops), {now[value.name]: axis for value, axis in way.part.axes.items()}
    )
    r = Rewriter(copied)
    split_rows(r, part, _COUNTS[way.count])
    return r.finish()

"""Where no schedule of Vela's keeps a limit for the arena: parts of the graph in bands of rows, as few as keep it."""

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

#: A graph as it was lowered -> what Vela makes of it in the smallest arena it finds.
Smallest = Callable[[Graph], CompiledModel]

_COUNTS = (2, 4, 8)
_ROUNDS = 2  # parts that are cut one after the other
_TRIES = 6  # of each round
_MOST_WORK = 2.0  # of what windows compute at once
_WORTH = 0.04  # of the arena: what a part has to save
_AT_THE_PEAK = 0.95  # of the arena: an operator with so many bytes alive stands in the way
_BITS = 20  # that tell of a part and its bands in the cache


@dataclass(frozen=True)
class Way:
    """How a graph is cut.

    Attributes:
        number: of the part among the graph's ``parts``.
        count: of its bands, by its place in ``_COUNTS``.
        part: that one.
    """

    number: int
    count: int
    part: Part

    @property
    def code(self) -> int:
        """Both in one positive integer."""
        return 1 + self.number * len(_COUNTS) + self.count


def with_bands(graph: Graph, first: CompiledModel, smallest: Smallest, limit: int, known: arena.Known) -> Graph | None:
    """A copy of the graph with parts in bands, whose smallest arena holds in the limit or at least is smaller; None without one.

    Args:
        graph: as it was lowered.
        first: what Vela makes of it in its smallest arena.
        smallest: compiles.
        limit: bytes.
        known: keeps which parts.
    """
    found, code = known.get()
    if found:
        return _decoded(graph, code or 0)
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
    known.put(codes)
    return best if codes else None


def _decoded(graph: Graph, codes: int) -> Graph | None:
    """The copy that the cache's number stands for; None for the number of none."""
    found = None
    while codes:
        number, count = divmod((codes & (1 << _BITS) - 1) - 1, len(_COUNTS))
        part = next((part for at, part in enumerate(parts(found or graph)) if at == number), None)
        if part is None:
            return None
        found = in_bands(found or graph, Way(number, count, part))
        codes >>= _BITS
    return found


def _better(
    graph: Graph, before: CompiledModel, size: int, smallest: Smallest, limit: int
) -> tuple[Graph, CompiledModel, int] | None:
    """A copy with one part more in bands, what Vela makes of it, and which part: the first that holds, else the smallest."""
    best: tuple[Graph, CompiledModel, int] | None = None
    for way in _ways(graph, before, size, limit):
        made = in_bands(graph, way)
        try:
            model = smallest(made.copy())
        except VelaError:
            continue
        if arena.arena_bytes(model) < size:
            best, size = (made, model, way.code), arena.arena_bytes(model)
        if size <= limit:
            break
    return best


def _ways(graph: Graph, before: CompiledModel, size: int, limit: int) -> Iterator[Way]:
    """Parts with an operator at the peak: of those that may hold the limit the least work first, then those that save most."""
    peak = before.around_peak(_AT_THE_PEAK)
    ranked = []
    for number, part in enumerate(parts(graph)):
        if peak.isdisjoint(op.result.name for op in part.ops):
            continue
        whole = part.alive_bytes(1)
        for count, bands in enumerate(_COUNTS):
            alive, work = part.alive_bytes(bands), part.work(bands)
            saved = min(whole, size) - alive
            if bands * 2 <= part.result.shape[1] and saved > _WORTH * size and work <= _MOST_WORK:
                short = alive > limit or whole - alive < size - limit
                ranked.append(((short, -saved if short else work, alive), Way(number, count, part)))
    ranked.sort(key=lambda entry: entry[0])
    return (way for _, way in ranked[:_TRIES])


def in_bands(graph: Graph, way: Way) -> Graph:
    """A copy of the graph with a part in bands.

    Args:
        way: which part, of this graph.
    """
    copied = graph.copy()
    now = {value.name: value for op in copied.ops for value in (*op.operands, *op.results)}
    places = {id(op): number for number, op in enumerate(graph.ops)}
    own = Part(
        tuple(copied.ops[places[id(op)]] for op in way.part.ops), {now[value.name]: axis for value, axis in way.part.axes.items()}
    )
    r = Rewriter(copied)
    split_rows(r, own, _COUNTS[way.count])
    return r.finish()

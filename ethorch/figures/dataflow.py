"""Which layer reads what which other layer wrote: the graph of a program, by its memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ethorch.figures.layer import Layer
from ethorch.figures.layers import Run, ends_of, runs
from ethorch.figures.stream_layers import works
from ethorch.figures.stream_tensors import Range, accesses, extent
from ethorch.figures.subject import Part, Subject
from ethorch.formats.payload import IoTensor
from ethorch.formats.pte_types import Move
from ethorch.npu.memory import Access

Ends = frozenset[str]


@dataclass(frozen=True)
class Dataflow:
    """A program as a graph.

    Attributes:
        layers: of the program, in the order of execution; of NPU delegates the operations of their command streams.
        inputs, outputs: names of the program's ends, ``input 0``.
        edges: (from, to): names of ends, or a layer's index as text.
    """

    layers: tuple[Layer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]


def dataflow(program: Subject) -> Dataflow:
    """The graph of a program that was read from a file, by what its commands and calls read and write.

    Weights are no edges. Branches are followed one after the other.

    Args:
        program: of ``figures.subject``, of a file: of a build, layers are those of Vela's schedule, and no commands.

    Raises:
        MachineFault: a command stream is malformed.
    """
    written: dict[int, Ends] = {}  # number of a value of the method -> who wrote it
    edges: dict[tuple[str, str], None] = {}
    parts = tuple(replace(part, lowered=None) for part in program.parts)
    program = replace(program, parts=parts)
    found = runs(program)

    moves: dict[int, list[int]] = {}  # what branches return -> what each of them computed
    for step in (step for chain in program.method.chains for step in chain.instructions if isinstance(step, Move)):
        moves.setdefault(step.target, []).append(step.source)

    def writers(number: int) -> Ends:
        own = written.get(number, frozenset([program.ends(number)]) if number in program.method.inputs else frozenset())
        return own.union(*(written.get(source, frozenset()) for source in moves.get(number, [])))

    for run in found:
        if run.call.delegate is None:
            inputs, outputs = ends_of(program, run.call)
            (layer,) = run.layers
            edges.update(((end, str(layer.index)), None) for number, _ in inputs for end in sorted(writers(number)))
            written.update((number, frozenset([str(layer.index)])) for number, _ in outputs)
        else:
            _through(program.parts[run.call.delegate], run, writers, written, edges)
    names = [program.ends(number) for number in program.method.outputs]
    for number, name in zip(program.method.outputs, names, strict=True):
        edges.update(((end, name), None) for end in sorted(writers(number)))
    layers = tuple(layer for run in found for layer in run.layers)
    return Dataflow(layers, tuple(map(program.ends, program.method.inputs)), tuple(names), tuple(edges))


def _through(part: Part, run: Run, writers, written: dict[int, Ends], edges: dict[tuple[str, str], None]) -> None:  # type: ignore[no-untyped-def]
    """The edges inside a delegate, and who wrote its results."""
    if part.payload is None:  # another backend's: one layer of which nothing is known
        numbers = run.call.args
        edges.update(((end, str(run.layers[0].index)), None) for number in numbers for end in sorted(writers(number)))
        written.update((number, frozenset([str(run.layers[0].index)])) for number in numbers if number not in written)
        return
    memory = _Memory()
    count = len(part.payload.inputs)
    for tensor, number in zip(part.payload.inputs, run.call.args, strict=False):
        memory.write(tensor.region, _range(tensor), writers(number), dense=True)
    for layer, work in zip(run.layers, works(part), strict=True):
        name = str(layer.index)
        for prepared in work.prepared:
            for access in accesses(prepared.reads):
                ends = memory.read(access.region, extent(access)) - {name}
                edges.update(((end, name), None) for end in sorted(ends))
            for access in accesses(prepared.writes):
                memory.write(access.region, extent(access), frozenset([name]), _is_dense(access))
    for tensor, number in zip(part.payload.outputs, run.call.args[count:], strict=False):
        written[number] = memory.read(tensor.region, _range(tensor))


def _range(tensor: IoTensor) -> Range:
    return tensor.offset, tensor.offset + tensor.nbytes


def _is_dense(access: Access) -> bool:
    """Does it touch each byte between its first and its last?"""
    low, high = extent(access)
    return access.size_bytes == high - low


@dataclass
class _Memory:
    """Who wrote which bytes last. What is written between the bytes of others leaves them there."""

    spans: list[tuple[int, Range, Ends]] = field(default_factory=list)

    def read(self, region: int, where: Range) -> Ends:
        ends: Iterable[Ends] = [by for r, (low, high), by in self.spans if r == region and low < where[1] and where[0] < high]
        return frozenset().union(*ends)

    def write(self, region: int, where: Range, by: Ends, dense: bool) -> None:
        kept: list[tuple[int, Range, Ends]] = []
        for span in self.spans:
            kept += [span] if span[0] != region else [(region, left, span[2]) for left in _left(span[1], where, dense)]
        self.spans = [*kept, (region, where, by)]


def _left(old: Range, new: Range, dense: bool) -> Sequence[Range]:
    """What is left of a range after another was written."""
    if new[0] >= old[1] or old[0] >= new[1]:
        return [old]
    if new[0] <= old[0] and old[1] <= new[1]:
        return []
    if not dense:
        return [old]
    return [part for part in ((old[0], new[0]), (new[1], old[1])) if part[0] < part[1]]

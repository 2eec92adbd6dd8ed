"""Which layer reads what which other layer wrote: the graph of a program, by its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ethorch.figures.layer import Layer
from ethorch.figures.layers import Run, ends_of, runs
from ethorch.figures.stream_layers import works
from ethorch.figures.stream_tensors import accesses, extent
from ethorch.figures.subject import Part, Subject
from ethorch.formats.payload import IoTensor
from ethorch.formats.pte_types import Move
from ethorch.npu.memory import Access, Span

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
        memory.write(_span(tensor), writers(number))
    for layer, work in zip(run.layers, works(part), strict=True):
        name = str(layer.index)
        for prepared in work.prepared:
            for access in accesses(prepared.reads):
                ends = memory.read(access) - {name}
                edges.update(((end, name), None) for end in sorted(ends))
            for access in accesses(prepared.writes):
                memory.write(access, frozenset([name]))
    for tensor, number in zip(part.payload.outputs, run.call.args[count:], strict=False):
        written[number] = memory.read(_span(tensor))


def _span(tensor: IoTensor) -> Span:
    return Span("IO", tensor.region, tensor.offset, tensor.nbytes)


class _Memory:
    """Who wrote each byte last. Bytes between those that a feature map covers are nobody's business of it."""

    def __init__(self) -> None:
        self._known: list[Ends] = [frozenset()]  # a number in ``_owners`` -> who that is
        self._owners: dict[int, npt.NDArray[np.int32]] = {}
        self._touched: dict[int, npt.NDArray[np.uint8]] = {}  # zeros between the calls

    def read(self, access: Access) -> Ends:
        """Those who wrote what it reads."""
        owners, touched = self._bytes(access)
        return frozenset().union(*(self._known[number] for number in np.unique(owners[touched])))

    def write(self, access: Access, by: Ends) -> None:
        """From now on its bytes are theirs."""
        owners, touched = self._bytes(access)
        owners[touched] = len(self._known)
        self._known.append(by)

    def _bytes(self, access: Access) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """The owners from its lowest address on, a view; and which of these bytes it touches."""
        low, high = extent(access)
        owners = self._owners.get(access.region, np.zeros(0, np.int32))
        if owners.size < high:
            more = max(high, 2 * owners.size) - owners.size
            owners = self._owners[access.region] = np.concatenate([owners, np.zeros(more, np.int32)])
            self._touched[access.region] = np.zeros(owners.size, np.uint8)
        memory = self._touched[access.region]
        if isinstance(access, Span):
            return owners[low:high], np.ones(high - low, np.bool_)
        for array in (array for view in access.views(memory) for array in view.arrays):
            array[...] = ~array.dtype.type(0)
        touched = memory[low:high] != 0
        memory[low:high] = 0
        return owners[low:high], touched

"""The dataflow graph of a program, derived from the memory that each layer reads and writes."""

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
    """The dataflow graph of a program.

    Attributes:
        layers: Layers in execution order. Each NPU layer is one operation in a command stream.
        inputs, outputs: Display names, e.g. ``input 0``.
        edges: Pairs (producer, consumer) of input names, output names, or layer indices as text.
    """

    layers: tuple[Layer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]


def dataflow(program: Subject) -> Dataflow:
    """Build the dataflow graph from the memory accesses of NPU commands and CPU operators.

    Weights do not create edges. All branches of control flow are assumed to run, in stored order. Compile-time information is
    ignored.

    Raises:
        MachineFault: A command stream is malformed.
    """
    written: dict[int, Ends] = {}  # writers of each value in the method
    edges: dict[tuple[str, str], None] = {}
    parts = tuple(replace(part, lowered=None) for part in program.parts)
    program = replace(program, parts=parts)
    calls = runs(program)

    moves: dict[int, list[int]] = {}  # for each value returned by branches, the values moved into it
    for step in (step for chain in program.method.chains for step in chain.instructions if isinstance(step, Move)):
        moves.setdefault(step.target, []).append(step.source)

    def writers(number: int) -> Ends:
        default = frozenset([program.ends(number)]) if number in program.method.inputs else frozenset()
        return written.get(number, default).union(*(written.get(source, frozenset()) for source in moves.get(number, [])))

    for run in calls:
        if run.call.delegate is None:
            inputs, outputs = ends_of(program, run.call)
            (layer,) = run.layers
            edges.update(((end, str(layer.index)), None) for number, _ in inputs for end in sorted(writers(number)))
            written.update((number, frozenset([str(layer.index)])) for number, _ in outputs)
        else:
            _add_delegate(program.parts[run.call.delegate], run, writers, written, edges)
    names = [program.ends(number) for number in program.method.outputs]
    for number, name in zip(program.method.outputs, names, strict=True):
        edges.update(((end, name), None) for end in sorted(writers(number)))
    layers = tuple(layer for run in calls for layer in run.layers)
    return Dataflow(layers, tuple(map(program.ends, program.method.inputs)), tuple(names), tuple(edges))


def _add_delegate(part: Part, run: Run, writers, written: dict[int, Ends], edges: dict[tuple[str, str], None]) -> None:  # type: ignore[no-untyped-def]
    if part.payload is None:  # a delegate of another backend is one opaque layer
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
    def __init__(self) -> None:
        self._writer_sets: list[Ends] = [frozenset()]  # indexed by the numbers in ``_writers``
        self._writers: dict[int, npt.NDArray[np.int32]] = {}
        self._touched: dict[int, npt.NDArray[np.uint8]] = {}  # temporary mask for each region; all zeros between calls

    def read(self, access: Access) -> Ends:
        writers, touched = self._bytes(access)
        return frozenset().union(*(self._writer_sets[number] for number in np.unique(writers[touched])))

    def write(self, access: Access, writers: Ends) -> None:
        numbers, touched = self._bytes(access)
        numbers[touched] = len(self._writer_sets)
        self._writer_sets.append(writers)

    def _bytes(self, access: Access) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Return the ``_writer_sets`` index of each byte in an access's range (a view), and a mask of the accessed bytes."""
        low, high = extent(access)
        writers = self._writers.get(access.region, np.zeros(0, np.int32))
        if writers.size < high:
            missing = max(high, 2 * writers.size) - writers.size
            writers = self._writers[access.region] = np.concatenate([writers, np.zeros(missing, np.int32)])
            self._touched[access.region] = np.zeros(writers.size, np.uint8)
        memory = self._touched[access.region]
        if isinstance(access, Span):
            return writers[low:high], np.ones(high - low, np.bool_)
        for array in (array for view in access.views(memory) for array in view.arrays):
            array[...] = ~array.dtype.type(0)
        touched = memory[low:high] != 0
        memory[low:high] = 0
        return writers[low:high], touched

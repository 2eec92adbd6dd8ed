"""Which layer each computing command of a delegate's stream works for, by its byte offset: what a position in the stream means."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ethorch.figures.layer import NPU, Layer
from ethorch.figures.stream_layers import works
from ethorch.figures.subject import Part, Subject
from ethorch.npu import Sources


@dataclass(frozen=True)
class CommandMap:
    """The computing commands of one delegate.

    Attributes:
        delegate: its number in the file.
        stream_bytes: of all its commands, as QSIZE says it.
        offsets: of the commands that begin an operation, in bytes from the first command, ascending.
        layers: index of the layer that each works for.
    """

    delegate: int
    stream_bytes: int
    offsets: tuple[int, ...]
    layers: tuple[int, ...]

    def at(self, position: int) -> int:
        """The layer at work when the NPU has read so many bytes (QREAD): that of the last command it has read whole.

        Before the first, it is that one's: its registers are set and its weights fetched.
        """
        return self.layers[max(0, bisect_left(self.offsets, position) - 1)]


def command_maps(program: Subject, layers: Sequence[Layer], sources: Mapping[int, Sources] | None) -> dict[int, CommandMap]:
    """The map of each delegate by its number; delegates of other backends, and those without an operation, have none.

    Args:
        layers: of ``figures.layers``, of the same program.
        sources: which operator each command works for, by the delegate's number; None: layers are commands then.

    Raises:
        MachineFault: a command stream is malformed.
    """
    found = {}
    for part in program.parts:
        if part.npu is None:
            continue
        own = [layer for layer in layers if layer.where == NPU and layer.delegate == part.number]
        known = None if sources is None else sources.get(part.number)
        offsets, indices = _map(replace(part, sources=known), own)
        if offsets:
            size = part.npu.header.stop - part.npu.header.start
            found[part.number] = CommandMap(part.number, size, tuple(offsets), tuple(indices))
    return found


def _map(part: Part, own: Sequence[Layer]) -> tuple[list[int], list[int]]:
    waiting: dict[str, list[Layer]] = {}
    for each in own:
        waiting.setdefault(each.name, []).append(each)
    of_source: dict[int, Layer] = {}
    offsets, indices = [], []
    for number, work in enumerate(works(part)):
        layer: Layer | None
        if work.source is None:
            layer = own[number] if part.sources is None and number < len(own) else None
        else:
            layer = of_source.get(id(work.source)) or _first(waiting.get(work.source.name, []), work.source.op_cycles)
            if layer is not None:
                of_source[id(work.source)] = layer
        if layer is not None:  # else an operation that no layer stands for
            offsets += work.offsets
            indices += [layer.index] * len(work.offsets)
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    return [offsets[i] for i in order], [indices[i] for i in order]


def _first(layers: list[Layer], cycles: int) -> Layer | None:
    """Takes the first with so many cycles out of layers that have one name; else the first."""
    if not layers:
        return None
    return layers.pop(next((number for number, layer in enumerate(layers) if layer.cycles == cycles), 0))

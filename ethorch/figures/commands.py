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
    """The commands that start the operations of one delegate, and the layer of each command.

    Attributes:
        stream_bytes: Size of the command stream (register QSIZE).
        offsets: Byte offset of each command in the stream, in ascending order.
        layers: Index of each command's layer.
    """

    delegate: int
    stream_bytes: int
    offsets: tuple[int, ...]
    layers: tuple[int, ...]

    def at(self, position: int) -> int:
        """Return the index of the layer that runs while register QREAD is ``position``.

        This is the layer of the last completely read command, if any, otherwise the first layer.
        """
        return self.layers[max(0, bisect_left(self.offsets, position) - 1)]


def command_maps(program: Subject, layers: Sequence[Layer], sources: Mapping[int, Sources] | None) -> dict[int, CommandMap]:
    """Return the command maps of Ethos-U delegates with at least one operation, by delegate number.

    Args:
        sources: Operator of each command, by delegate number. If None, each computing command is one layer.

    Raises:
        MachineFault: A command stream is malformed.
    """
    maps = {}
    for part in program.parts:
        if part.npu is None:
            continue
        part_layers = [layer for layer in layers if layer.where == NPU and layer.delegate == part.number]
        part_sources = None if sources is None else sources.get(part.number)
        offsets, indices = _map(replace(part, sources=part_sources), part_layers)
        if offsets:
            size = part.npu.header.stop - part.npu.header.start
            maps[part.number] = CommandMap(part.number, size, tuple(offsets), tuple(indices))
    return maps


def _map(part: Part, part_layers: Sequence[Layer]) -> tuple[list[int], list[int]]:
    pending: dict[str, list[Layer]] = {}
    for candidate in part_layers:
        pending.setdefault(candidate.name, []).append(candidate)
    layer_by_source: dict[int, Layer] = {}
    offsets, indices = [], []
    for number, work in enumerate(works(part)):
        layer: Layer | None
        if work.source is None:
            layer = part_layers[number] if part.sources is None and number < len(part_layers) else None
        else:
            layer = layer_by_source.get(id(work.source)) or _pop_match(pending.get(work.source.name, []), work.source.op_cycles)
            if layer is not None:
                layer_by_source[id(work.source)] = layer
        if layer is not None:  # other operations have no layer
            offsets += work.offsets
            indices += [layer.index] * len(work.offsets)
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    return [offsets[i] for i in order], [indices[i] for i in order]


def _pop_match(layers: list[Layer], cycles: int) -> Layer | None:
    if not layers:
        return None
    return layers.pop(next((number for number, layer in enumerate(layers) if layer.cycles == cycles), 0))

"""Derive the layers of a delegate from its command stream.

A command stream records neither operators nor cycles. ``Sources`` provide both.
"""

from __future__ import annotations

from collections.abc import Iterator

from ethorch.figures.layer import NPU, Layer
from ethorch.figures.stream_tensors import StreamTensor, StreamTensors, accesses
from ethorch.figures.subject import Part
from ethorch.npu import Source
from ethorch.npu.forms import Nothing, Transfer
from ethorch.npu.prepared import PREPARE, Prepared
from ethorch.npu.stream import Operation
from ethorch.support.errors import MachineFault


class _Work:
    def __init__(self, part: Part, source: Source | None):
        self.part, self.source = part, source
        self.macs = 0
        self.read: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.title = ""
        self.ifm_shapes: tuple[tuple[int, ...], ...] = ()
        self.ofm_shape: tuple[int, ...] = ()
        self.commands = 0
        self.offsets: list[int] = []
        self.prepared: list[Prepared] = []

    def add(self, op: Operation, prepared: Prepared) -> None:
        self.prepared.append(prepared)
        self.macs += prepared.macs
        for total, touched in ((self.read, prepared.reads), (self.written, prepared.writes)):
            for access in accesses(touched):
                memory = self.part.memory_of(access.region)
                total[memory] = total.get(memory, 0) + access.size_bytes
        if prepared.scattered is not None:  # gather and scatter read indices from memory
            for total, region in zip((self.read, self.written), prepared.scattered, strict=True):
                memory = self.part.memory_of(region)
                total[memory] = total.get(memory, 0) + prepared.dma_bytes
        is_command = prepared.computes or isinstance(prepared.form, Transfer)
        if is_command or not self.commands:  # a copy without a computing command is the last command of its layer
            self.offsets = [*self.offsets, op.offset] if self.commands else [op.offset]
            self.title = self.title if self.commands else op.title.removeprefix("NPU_OP_")
        if is_command:
            self.commands += 1
            maps = {fm.name: fm for fm in prepared.maps}
            self.ifm_shapes = tuple((1, *maps[name].shape) for name in ("IFM", "IFM2") if name in maps)
            self.ofm_shape = (1, *maps["OFM"].shape) if "OFM" in maps else ()

    def layer(self, index: int) -> Layer:
        source, is_striped = self.source, self.commands > 1  # the shape of a stripe differs from the shape of the operation
        return Layer(
            index=index,
            name=source.name if source else f"{self.title.lower().replace(' ', '_')}_{index}",
            where=NPU,
            delegate=self.part.number,
            operator=source.operator if source else self.title,
            operators=(source.origin.split(" ")[0],) if source and source.origin else (),
            module=_extract_between(source.origin, " at ", " (") if source else "",
            source=_extract_between(source.origin, "(", ")") if source else "",
            cycles=source.op_cycles if source else None,
            npu_cycles=source.npu_cycles if source else None,
            macs=source.macs if source else self.macs,
            read_bytes=self.read,
            written_bytes=self.written,
            ifm_shapes=() if is_striped else self.ifm_shapes,
            ofm_shape=() if is_striped else self.ofm_shape,
        )


def stream_layers(part: Part, first: int) -> list[Layer]:
    """Return one layer for each operator in ``part.sources``.

    Without sources, return one for each computing command, including the DMA transfers before it.

    Raises:
        MachineFault: The command stream is malformed.
    """
    return [work.layer(first + number) for number, work in enumerate(works(part))]


def stream_tensors(part: Part) -> list[StreamTensor]:
    """Return the tensors in the delegate's regions, with the layers during which each tensor is alive.

    Raises:
        MachineFault: The command stream is malformed.
    """
    if part.payload is None:
        return []
    tensors = StreamTensors()
    for tensor in part.payload.inputs:
        tensors.add_input(tensor.region, (tensor.offset, tensor.offset + tensor.nbytes))
    position = 0
    for position, work in enumerate(works(part)):
        for prepared in work.prepared:
            tensors.add(position, prepared)
    for tensor in part.payload.outputs:
        tensors.add_output(tensor.region, (tensor.offset, tensor.offset + tensor.nbytes), position)
    return tensors.finish()


def works(part: Part) -> Iterator[_Work]:
    """Iterate over the layers of a delegate, each with its commands.

    Raises:
        MachineFault: The command stream is malformed.
    """
    if part.npu is None:
        return
    work: _Work | None = None
    for op in part.npu.operations():
        prepare = PREPARE.get((op.name, op.npu.family))
        if prepare is None:
            continue
        try:
            prepared = prepare(op)
        except MachineFault as fault:
            raise op.locate(fault) from fault
        source = part.sources.at(op.offset) if part.sources else None
        if isinstance(prepared.form, Nothing):
            continue
        if work is not None and (source is not work.source or (source is None and work.commands)):
            yield work
            work = None
        work = work or _Work(part, source)
        work.add(op, prepared)
    if work is not None:
        yield work


def _extract_between(text: str, start: str, end: str) -> str:
    _, mark, rest = text.partition(start)
    return rest.partition(end)[0] if mark and end in rest else ""

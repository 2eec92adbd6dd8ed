"""Check the values in memory. A value consists of the bytes that one operation writes, and is valid until they are overwritten."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ethorch.npu.arrays import Array, Bytes
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.filters import Streams
from ethorch.npu.forms import Transfer
from ethorch.npu.ir.image import CONSTANTS, Image
from ethorch.npu.memory import INTERNAL, Access, Span
from ethorch.npu.runs import Run
from ethorch.npu.verify.addresses import STREAM_BYTES, find_streams
from ethorch.npu.verify.coverage import is_stored, view_bytes
from ethorch.npu.verify.forms import NEW_FORMS
from ethorch.npu.verify.instruction import Facts, reject
from ethorch.npu.verify.rejection import Rejection
from ethorch.npu.verify.shram import tables_share_banks
from ethorch.npu.verify.written_weights import WRITTEN_WEIGHTS, count_written_weights
from ethorch.npu.weights import decode
from ethorch.npu.weights.order import entries
from ethorch.support.errors import MachineFault

_UNWRITTEN = -1
_FIRST_INPUT = -2  # label of the host's first input; the next ones are -3, -4, ...
_lengths: dict[bytes, int] = {}


@dataclass
class _Overwrite:
    writer: int
    unread: int


@dataclass
class Memory:
    """The state of each byte, by region.

    Attributes:
        writers: Label of each byte: the position of its writer, or a negative number for unwritten bytes and inputs.
        unread: True for each byte that has not been read since it was written.
        contents: Bytes that were copied from constants.
        known: True for each valid byte of ``contents``.
        paddings: Positions of kernels whose results depend only on constants.
    """

    writers: dict[int, Array]
    unread: dict[int, Array]
    contents: dict[int, Bytes]
    known: dict[int, Array]
    overwrites: dict[int, _Overwrite] = field(default_factory=dict)
    read_values: set[int] = field(default_factory=set)
    constant_transfers: set[int] = field(default_factory=set)
    paddings: set[int] = field(default_factory=set)


def check_values(all_facts: Sequence[Facts], image: Image) -> Iterator[Rejection]:
    if not all_facts:
        return
    npu = all_facts[0].npu
    sizes = {**image.allocated, INTERNAL: npu.internal_bytes}
    memory = Memory(
        {n: np.full(size, _UNWRITTEN, np.int32) for n, size in sizes.items()},
        {n: np.zeros(size, np.bool_) for n, size in sizes.items()},
        {n: np.zeros(size, np.uint8) for n, size in sizes.items()},
        {n: np.zeros(size, np.bool_) for n, size in sizes.items()},
    )
    for number, (region, low, high) in enumerate(image.inputs):
        memory.writers[region][low:high] = _FIRST_INPUT - number
        memory.unread[region][low:high] = True
    checker = _Checker(all_facts, image, memory)
    for index, facts in enumerate(all_facts):
        yield from checker.check(index, facts)
    yield from checker.check_end()


class _Checker:
    def __init__(self, all_facts: Sequence[Facts], image: Image, memory: Memory):
        self.all_facts, self.image, self.memory = all_facts, image, memory
        self.loses_tables = tables_share_banks(all_facts[0].npu)

    def check(self, index: int, facts: Facts) -> Iterator[Rejection]:
        assert facts.prepared is not None
        is_transfer = facts.is_dma
        source_labels: Array | None = None
        sources: set[int] = set()
        for access in _accesses(facts, writes=False):
            if access.region == CONSTANTS:
                continue
            for view in view_bytes(access, self.memory.writers[access.region]):
                if is_transfer:
                    source_labels = view.copy()
                values = _count(view)
                sources.update(label for label, _ in values)
                yield from self._read(index, facts, access, values)
            for view in view_bytes(access, self.memory.unread[access.region]):
                view[...] = False
        if facts.table is not None:
            yield from self._check_table(index, facts, facts.table)
        if (streams := find_streams(facts)) is not None:
            yield from self._check_weights(index, facts, streams)
        if self.loses_tables and not is_transfer and facts.table is None:
            self.memory.writers[INTERNAL][:] = _UNWRITTEN
            self.memory.unread[INTERNAL][:] = False
        if not is_transfer and sources <= self.memory.constant_transfers | self.memory.paddings:
            self.memory.paddings.add(index)
        for access in _accesses(facts, writes=True):
            self._write(index, access)
        if is_transfer:
            self._copy(index, facts, source_labels)

    def _read(self, index: int, facts: Facts, access: Access, values: list[tuple[int, int]]) -> Iterator[Rejection]:
        for label, count in values:
            if label == _UNWRITTEN:
                if not facts.is_dma:
                    yield reject(facts, index, "unwritten", access.name, f"{count} bytes that nothing wrote", "written bytes")
                continue
            self.memory.read_values.add(label)
            overwrite = self.memory.overwrites.get(label)
            is_rounding = facts.is_dma and count < STREAM_BYTES  # bytes after a tensor, which the copy does not use
            if overwrite is not None and not is_rounding:
                yield from self._check_overwrite(index, access, label, overwrite, {number for number, _ in values})

    def _check_overwrite(
        self, index: int, access: Access, label: int, overwrite: _Overwrite, labels: set[int]
    ) -> Iterator[Rejection]:
        # Rejects overwrites, except those of padding, and of rows of a rolling buffer that have been read (npu-reference 3.2).
        writer = self.all_facts[overwrite.writer]
        written = _written_map(writer)
        value = _written_map(self.all_facts[label]) if label >= 0 else None
        if label < 0 and not overwrite.unread:
            return
        if value is not None and written is not None:
            parts = [part for number in labels if number >= 0 and (part := _written_map(self.all_facts[number])) is not None]
            origins = {value.bases[0], written.bases[0], min(part.bases[0] for part in parts)}
            origins.add(access.base if isinstance(access, Span) else access.bases[0])
            shared = any(_share_tensor(value, written, origin) for origin in origins)
            is_padding = {label, overwrite.writer} <= self.memory.paddings
            if is_padding or (shared and not overwrite.unread):
                return
        source = f"operation {label}" if label >= 0 else f"input {_FIRST_INPUT - label}"
        reader = "the host" if index == len(self.all_facts) else f"operation {index}"
        unread = f"{overwrite.unread} unread bytes of " if overwrite.unread else ""
        text = f"addresses outside the values in use; {reader} reads the value of {source}"
        yield reject(writer, overwrite.writer, "overlap", _written_register(writer), f"over {unread}the value of {source}", text)

    def _write(self, index: int, access: Access) -> None:
        writers, unread = self.memory.writers[access.region], self.memory.unread[access.region]
        for view in view_bytes(access, self.memory.known[access.region]):
            view[...] = False
        for labels, marks in zip(view_bytes(access, writers), view_bytes(access, unread), strict=True):
            values = _count(labels)
            has_unread = bool(marks.any())
            for label, _ in values:
                if label in (_UNWRITTEN, index):
                    continue
                covered = marks if len(values) == 1 else marks[labels == label] if has_unread else marks[:0]
                lost = int(np.count_nonzero(covered)) if has_unread else 0
                overwrite = self.memory.overwrites.setdefault(label, _Overwrite(index, 0))
                if lost and not overwrite.unread:
                    overwrite.writer = index
                overwrite.unread += lost
            labels[...] = index
            marks[...] = True

    def _copy(self, index: int, facts: Facts, labels: Array | None) -> None:
        assert facts.prepared is not None
        if facts.prepared.scattered is not None or len(facts.prepared.reads) != 1:
            return
        (source,), (target,) = facts.prepared.reads, facts.prepared.writes
        if not isinstance(source, Span) or not isinstance(target, Span):
            (view,) = view_bytes(target, self.memory.writers[target.region])
            view[labels == _UNWRITTEN] = _UNWRITTEN
            return
        low, high = target.base, target.base + target.size_bytes
        contents, valid = self.memory.contents[target.region], self.memory.known[target.region]
        if source.region == CONSTANTS:
            contents[low:high] = self.image.constants[source.base : source.base + source.size_bytes]
            valid[low:high] = True
            self.memory.constant_transfers.add(index)
        elif labels is not None:
            start, end = source.base, source.base + source.size_bytes
            self.memory.writers[target.region][low:high][labels == _UNWRITTEN] = _UNWRITTEN
            contents[low:high] = self.memory.contents[source.region][start:end]
            valid[low:high] = self.memory.known[source.region][start:end]
            if valid[low:high].all():
                self.memory.constant_transfers.add(index)

    def _constant_bytes(self, span: Span) -> Bytes | None:
        low, high = span.base, span.base + span.size_bytes
        if span.region == CONSTANTS:
            return self.image.constants[low:high]
        return self.memory.contents[span.region][low:high] if self.memory.known[span.region][low:high].all() else None

    def _count_staged_weights(self, span: Span, facts: Facts) -> int | None:
        if span.region == CONSTANTS or WRITTEN_WEIGHTS not in NEW_FORMS[facts.npu.family]:
            return None
        low, high = span.base, span.base + span.size_bytes
        (label, _), *further = _count(self.memory.writers[span.region][low:high])
        if further or label < 0 or not self.all_facts[label].is_dma:
            return None
        return count_written_weights(self.memory.contents[span.region][low:high], self.memory.known[span.region][low:high])

    def _check_table(self, index: int, facts: Facts, table: Run) -> Iterator[Rejection]:
        labels = self.memory.writers[INTERNAL][table.low : table.high]
        self.memory.unread[INTERNAL][table.low : table.high] = False
        values = _count(labels)
        self.memory.read_values.update(label for label, _ in values)
        label = values[0][0]
        slot = (table.low - facts.npu.lut_base) // 256
        if len(values) > 1 or label == _UNWRITTEN:
            content = "nothing" if label == _UNWRITTEN else "bytes of " + " and ".join(f"operation {n}" for n, _ in values)
            yield reject(facts, index, "lut", "ACTIVATION", f"slot {slot} with {content}", "the table of one transfer")
            return
        runs = [run for run in self.all_facts[label].writes if run.region == INTERNAL]
        if [(run.low, run.high) for run in runs] != [(table.low, table.high)]:
            span = f"{runs[0].low:#x} to {runs[0].high:#x}" if runs else "nothing"
            text = f"{table.low:#x} to {table.high:#x}, the table of operation {index}"
            yield reject(self.all_facts[label], label, "lut", "DMA0_DST, DMA0_LEN", span, text)

    def _check_weights(self, index: int, facts: Facts, streams: Streams) -> Iterator[Rejection]:
        for span in streams.scale_spans:
            if self._constant_bytes(span) is None:
                yield reject(facts, index, "streams", span.name, "bytes that are not constants", "constants, or a copy of them")
        if streams.order is None:
            return
        needed = 1 if streams.fast else min(streams.order.streams, streams.order.ofm_depth)
        if len(streams.weight_spans) < needed:
            yield reject(facts, index, "length", "WEIGHT_LENGTH", len(streams.weight_spans), f"{needed} streams")
            return
        for core, span in enumerate(streams.weight_spans):
            content = self._constant_bytes(span)
            weights = self._count_staged_weights(span, facts) if content is None else count_weights(content, streams.fast)
            if weights is None:
                yield reject(facts, index, "streams", span.name, "bytes that are not constants", "constants, or a copy of them")
                continue
            cores = range(streams.order.streams) if streams.fast else (core,)
            count = sum(entries(replace(streams.order, stream=s), streams.family) for s in cores)
            if weights != count and not (streams.fast and weights >= count):
                allowed = f"{count} weights"
                yield reject(facts, index, "length", f"{span.name}_LENGTH", f"{span.size_bytes} bytes, {weights} weights", allowed)

    def check_end(self) -> Iterator[Rejection]:
        end = len(self.all_facts)
        for number, (region, low, high) in enumerate(self.image.outputs):
            values = _count(self.memory.writers[region][low:high])
            present = {label for label, _ in values}
            self.memory.read_values.update(label for label, _ in values)
            for label, count in values:
                if label == _UNWRITTEN:
                    unwritten = f"{count} bytes that nothing wrote"
                    yield Rejection("output", end, "end of stream", f"output {number}", unwritten, "written bytes")
                elif (overwrite := self.memory.overwrites.get(label)) is not None:
                    yield from self._check_overwrite(end, Span("", region, low, high - low), label, overwrite, present)
        for index, facts in enumerate(self.all_facts):
            if index in self.memory.read_values or not any(is_stored(access) for access in _accesses(facts, writes=True)):
                continue
            if facts.is_dma:
                yield reject(facts, index, "unused", "DMA0_DST", "a value that is never read", "values that are read")


def count_weights(content: Bytes, is_fast: bool) -> int:
    """Return the number of weights in a weight stream, or -1 if it is malformed."""
    key = hashlib.blake2b(content.tobytes(), digest_size=16).digest() + bytes([is_fast])
    if key not in _lengths:
        try:
            weights = decode.decode_fast(content) if is_fast else decode.decode_standard(content)
            _lengths[key] = len(weights)
        except MachineFault:
            _lengths[key] = -1
    return _lengths[key]


def _accesses(facts: Facts, writes: bool) -> list[Access]:
    prepared = facts.prepared
    assert prepared is not None
    if isinstance(prepared.form, Transfer) and prepared.form.is_indexed:
        runs = facts.writes if writes else facts.reads
        return [Span(run.register, run.region, run.low, run.high - run.low) for run in runs]
    return [access for access in (prepared.writes if writes else prepared.reads) if is_stored(access)]


def _written_register(facts: Facts) -> str:
    return "DMA0_DST" if facts.is_dma else "OFM_BASE0"


def _count(labels: Array) -> list[tuple[int, int]]:
    low, high = int(labels.min()), int(labels.max())
    if low == high:
        return [(low, labels.size)]
    counts = np.bincount((labels - low).ravel())
    return [(low + int(n), int(counts[n])) for n in np.flatnonzero(counts)]


def _written_map(facts: Facts) -> FeatureMap | None:
    assert facts.prepared is not None
    if facts.is_dma:
        return None
    maps = [access for access in facts.prepared.writes if isinstance(access, FeatureMap)]
    return maps[0] if len(maps) == 1 else None


def _share_rows(a: FeatureMap, b: FeatureMap) -> bool:
    return (a.bricks, a.dtype.itemsize, a.strides[:2]) == (b.bricks, b.dtype.itemsize, b.strides[:2])


def _share_tensor(a: FeatureMap, b: FeatureMap, origin: int) -> bool:
    """Return True if two feature maps can be parts of one tensor with a row starting at ``origin``."""
    axes = 3 if a.bricks else 2
    if not _share_rows(a, b) or a.strides[:axes] != b.strides[:axes] or min(a.strides[:axes]) <= 0:
        return False
    return _fits_rows(a, origin) and _fits_rows(b, origin)


def _fits_rows(fm: FeatureMap, origin: int) -> bool:
    step_y, step_x, step_c = fm.strides
    rest = (fm.bases[0] - origin) % step_y
    if fm.bricks:
        rest %= step_c
        return rest % step_x == 0 and rest + fm.width * step_x <= step_c
    columns, channels = divmod(rest, step_x)
    row_bytes = fm.depth * fm.dtype.itemsize
    return channels + row_bytes <= step_x and (columns + fm.width - 1) * step_x + channels + row_bytes <= step_y

"""Dataflow of a command stream.

A byte's label is its writer and its position in the writer's output, or, for a constant byte, its value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ethorch.npu.arrays import Array, Bytes
from ethorch.npu.feature_map import FeatureMap, read_rows, write_rows
from ethorch.npu.forms import Copy, Transfer
from ethorch.npu.ir.image import CONSTANTS, Place
from ethorch.npu.ir.kernel_copies import find_kernel_copy
from ethorch.npu.ir.stream import Op
from ethorch.npu.memory import Access, Span
from ethorch.npu.runs import Run

Labels = npt.NDArray[np.int64]
_LABEL_BYTES = 8
_POSITION_BITS = 34  # of a label; the others contain the writer
_UNWRITTEN, _CONSTANT = -1, -2  # labels; a constant of value n has the label _CONSTANT - n
_FIRST_INPUT, _FIRST_NEW = 1 << 27, 1 << 28  # writers from these numbers on: inputs of the host, operations with a negative key


@dataclass(frozen=True)
class Dataflow:
    """The label digests of the bytes that operations and the host read."""

    reads: Mapping[int, tuple[str, ...]]  # by the operation's key, one digest for each read access
    outputs: tuple[str, ...]  # by the number of the host's output


def trace_dataflow(ops: Sequence[Op], constants: Bytes, inputs: Iterable[Place] = (), outputs: Iterable[Place] = ()) -> Dataflow:
    """Return the dataflow of operations in execution order.

    Raises:
        MachineFault: An operation has invalid registers.
    """
    memory = LabelMemory(ops, constants, (*inputs, *outputs))
    for number, place in enumerate(inputs):
        memory.write_input(number, place)
    reads = {op.key: memory.execute(op) for op in ops}
    return Dataflow(reads, tuple(memory.digest_span(*place) for place in outputs))


def _further(runs: Sequence[Run], accesses: Sequence[Access]) -> list[Run]:
    names = {access.name for access in accesses}
    return [run for run in runs if not any(run.register.startswith(name) for name in names)]


class LabelMemory:
    """The label of each byte of each region."""

    def __init__(self, ops: Sequence[Op], constants: Bytes, places: Sequence[Place]):
        ends: dict[int, int] = {}
        runs = [(run.region, run.high) for op in ops for run in (*op.reads, *op.writes)]
        for region, high in (*runs, *((region, high) for region, _, high in places)):
            ends[region] = max(ends.get(region, 0), high)
        self.regions = {n: np.full(end, _UNWRITTEN, np.int64) for n, end in ends.items() if n != CONSTANTS}
        self.regions[CONSTANTS] = _CONSTANT - constants.astype(np.int64)

    def write_input(self, number: int, place: Place) -> None:
        self.write_span(*place, _FIRST_INPUT + number)

    def execute(self, op: Op) -> tuple[str, ...]:
        """Label the written bytes, and return a digest for each read.

        For transfers without indices and for copy kernels, move labels and return no digests.
        """
        form = op.prepared.form
        if isinstance(form, Copy):
            source, target = (self.regions[span.region][span.base :][: span.size_bytes] for span in (form.source, form.target))
            labels = source.copy()
            target.fill(_UNWRITTEN)
            target[: len(labels)] = labels  # the constants may end before the last bytes of a transfer
            return ()
        if isinstance(form, Transfer) and not form.is_indexed:
            assert form.source_rows is not None and form.target_rows is not None
            self._write_labels(form.target_rows, self.read(form.source_rows))
            return ()
        copy = find_kernel_copy(op)
        if copy is not None:
            self._write_labels(copy.target, self.read(copy.source).transpose(copy.axes))
            return ()
        writer = op.key if op.key >= 0 else _FIRST_NEW - op.key
        digests = []
        for access in op.prepared.reads:
            if not isinstance(access, FeatureMap) or access.in_memory:
                digests.append(self.digest(access))
        for run in _further(op.reads, op.prepared.reads):
            digests.append(self.digest_span(run.region, run.low, run.high))
        for access in op.prepared.writes:
            self.write(access, writer)
        for run in _further(op.writes, op.prepared.writes):
            assert isinstance(form, Transfer)
            if form.by_target:  # indices select the bytes that change
                digests.append(self.digest_span(run.region, run.low, run.high))
                self.write_span(run.region, run.low, run.high, writer)
            elif form.target_rows is not None:
                self.write(form.target_rows, writer)
        return tuple(digests)

    def _write_labels(self, fm: FeatureMap, labels: Array) -> None:
        scaled = _scale(fm)
        write_rows(scaled.views(self.regions[fm.region].view(np.uint8)), 0, labels.view(scaled.dtype))

    def digest(self, access: Access) -> str:
        if isinstance(access, Span):
            return self.digest_span(access.region, access.base, access.base + access.size_bytes)
        return _digest(self.read(access))

    def read(self, fm: FeatureMap) -> Array:
        """Return the labels of a feature map's bytes as [H, W, C]."""
        scaled = _scale(fm)
        box = np.empty(scaled.shape, scaled.dtype)
        read_rows(scaled.views(self.regions[fm.region].view(np.uint8)), 0, box)
        return box

    def digest_span(self, region: int, low: int, high: int) -> str:
        return _digest(self.regions[region][low:high])

    def write(self, access: Access, writer: int) -> None:
        if isinstance(access, Span):
            self.write_span(access.region, access.base, access.base + access.size_bytes, writer)
        elif access.in_memory:
            labels = _label(writer, access.elements * access.dtype.itemsize)
            self._write_labels(access, labels.view(_scale(access).dtype).reshape(access.shape))

    def write_span(self, region: int, low: int, high: int, writer: int) -> None:
        self.regions[region][low:high] = _label(writer, high - low)


def _digest(labels: npt.NDArray[np.generic]) -> str:
    return hashlib.sha1(labels.view(np.uint8).data, usedforsecurity=False).hexdigest()


def _label(writer: int, size_bytes: int) -> Labels:
    return (writer << _POSITION_BITS) + np.arange(size_bytes, dtype=np.int64)


def _scale(fm: FeatureMap) -> FeatureMap:
    return replace(
        fm,
        dtype=np.dtype(np.int64 if fm.dtype.itemsize == 1 else f"V{_LABEL_BYTES * fm.dtype.itemsize}"),
        bases=tuple(_LABEL_BYTES * base for base in fm.bases),
        strides=(_LABEL_BYTES * fm.strides[0], _LABEL_BYTES * fm.strides[1], _LABEL_BYTES * fm.strides[2]),
    )

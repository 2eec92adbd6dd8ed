"""Replace a matrix product with convolutions whose weights the NPU writes.

A transfer copies the weights before they are used, because kernels wait only for weights that transfers write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ethorch.npu.arithmetic import ceil_div, round_up
from ethorch.npu.ir import Op
from ethorch.npu.ir.image import CONSTANTS
from ethorch.npu.passes.attention.blocks import Block, shares_tables
from ethorch.npu.passes.attention.kernels import LINE, Constants, Emitter, Place
from ethorch.npu.passes.attention.match import Product
from ethorch.npu.passes.attention.tables import SLOT_BYTES, Slots
from ethorch.npu.passes.attention.weights import (
    FIRST_HIGH,
    FIRST_LOW,
    IFM_BLOCK,
    Box,
    Layout,
    build_end,
    build_header,
    build_tables,
)
from ethorch.npu.registers import Npu

_SCALE_BYTES = 10  # of a channel: bias, multiplier, shift (npu-reference 5)


@dataclass(frozen=True)
class Form:
    piece: int  # columns of one convolution
    has_taps: bool  # inputs are taps of 32 channels
    block: Block


@dataclass(frozen=True)
class Piece:
    """The output columns of one convolution, with the layout of each core's weights."""

    first: int
    columns: int
    layouts: tuple[Layout, ...]

    @property
    def scale_bytes(self) -> tuple[int, ...]:
        return tuple(round_up(_SCALE_BYTES * layout.outputs, LINE) for layout in self.layouts)

    @property
    def size_bytes(self) -> int:
        return sum(layout.size_bytes for layout in self.layouts) + sum(self.scale_bytes)


def split_columns(npu: Npu, product: Product, piece: int, has_taps: bool) -> list[Piece]:
    pieces = []
    for first in range(0, product.columns, piece):
        columns = min(piece, product.columns - first)
        cores = range(min(npu.cores, columns))
        outputs = [ceil_div(columns - core, npu.cores) for core in cores]
        layouts = tuple(Layout(count, product.depth, npu.ofm_units[0], has_taps) for count in outputs)
        pieces.append(Piece(first, columns, layouts))
    return pieces


def count_buffers(product: Product, pieces: Sequence[Piece]) -> int:
    _, low, high = product.scratch
    return (high - round_up(low, LINE)) // max(piece.size_bytes for piece in pieces)


class Writer:
    def __init__(self, emitter: Emitter, constants: Constants, slots: Slots, product: Product, form: Form):
        self.emitter, self.constants, self.slots = emitter, constants, slots
        self.product, self.form, self.npu = product, form, emitter.npu
        self.pieces = split_columns(self.npu, product, form.piece, form.has_taps)
        self.region, low, _ = product.scratch
        size = max(piece.size_bytes for piece in self.pieces)
        starts = [round_up(low, LINE) + number * size for number in range(min(count_buffers(product, self.pieces), 3))]
        self.written, self.staged = starts[0], starts[1:]
        self.parallel = product.output.registers.get("PARALLEL_MODE", 0)

    def write(self, free_slots: Sequence[int]) -> bool:
        """Emit operations that compute the product. Return False if there are not enough slots for lookup tables."""
        addresses = [self.constants.add(table) for table in build_tables()]
        chosen = self.slots.choose(addresses, free_slots)
        if chosen is None:
            return False
        self.tables = list(zip(chosen, addresses, strict=True))
        pending: list[tuple[Piece, int, int]] = []
        prepared: tuple[Layout, ...] = ()
        for number, (piece, batch) in enumerate(self._list_units()):
            if len(self.staged) == 1:
                self._convolve(pending)
            if piece.layouts != prepared:
                self._prepare(piece)
                prepared = piece.layouts
            self._write_streams(piece, batch)
            target = self.staged[number % len(self.staged)]
            self.emitter.transfer((self.region, self.written), (self.region, target), piece.size_bytes)
            self._convolve(pending)
            pending.append((piece, batch, target))
        self._convolve(pending)
        return True

    def _list_units(self) -> list[tuple[Piece, int]]:
        pieces, batches = self.pieces, range(self.product.batches)
        if all(piece.layouts == pieces[0].layouts for piece in pieces):
            return [(piece, batch) for batch in batches for piece in pieces]  # the pass division can then run batch by batch
        return [(piece, batch) for piece in pieces for batch in batches]

    def _prepare(self, piece: Piece) -> None:
        base = self.written
        for layout in piece.layouts:
            for data, at in ((build_header(layout.weights), 0), (build_end(), layout.size_bytes - LINE)):
                self.emitter.transfer((CONSTANTS, self.constants.add(data)), (self.region, base + at), LINE)
            base += layout.size_bytes
        for layout, size in zip(piece.layouts, piece.scale_bytes, strict=True):
            scales = self.constants.add(self._build_scales(layout.outputs))
            self.emitter.transfer((CONSTANTS, scales), (self.region, base), size)
            base += size
        base = self.written
        for core, layout in enumerate(piece.layouts):
            for box in layout.list_gaps():
                self._copy_box(piece, 0, core, base, box, None, is_zero=True)
            base += layout.size_bytes

    def _build_scales(self, count: int) -> bytes:
        raw = self.product.output.registers["OFM_SCALE"]
        return count * (bytes(5) + (raw & 0xFFFFFFFF).to_bytes(4, "little") + bytes([raw >> 32 & 0x3F]))

    def _load_tables(self) -> None:
        for slot, address in self.tables:
            if self.slots.contents.get(slot) != address:
                self.emitter.load_table(address, slot, SLOT_BYTES)
                self.slots.contents[slot] = address

    def _write_streams(self, piece: Piece, batch: int) -> None:
        self._load_tables()
        (fold, _), (low, _), (high, _) = self.tables
        base = self.written
        for core, layout in enumerate(piece.layouts):
            for box in layout.list_boxes():
                self._copy_box(piece, batch, core, base, box, fold)
            for at, table in ((FIRST_LOW, low), (FIRST_HIGH, high)):
                self._copy_box(piece, batch, core, base, Box(0, 0, 1, 1, 1, 0, 0, at, 0), table)
            base += layout.size_bytes
        if shares_tables(self.npu):
            self.slots.contents.clear()

    def _copy_box(self, piece: Piece, batch: int, core: int, base: int, box: Box, table: int | None, is_zero: bool = False) -> None:
        matrix, cores = self.product.b, self.npu.cores
        size = box.height, box.width, box.channels
        column = piece.first + cores * box.output + core
        source = matrix.base + batch * matrix.batch_stride + column * matrix.row_stride + box.input
        step = box.output_step * cores * matrix.row_stride + box.input_step
        stride = cores * matrix.row_stride
        ifm = Place(matrix.region, source, size, (step or box.width * stride, stride))
        target = Place(self.region, base + box.offset, size, (box.stride or 8 * box.width, 8))
        self.emitter.copy(ifm, target, self.parallel, table, is_zero)

    def _convolve(self, pending: list[tuple[Piece, int, int]]) -> None:
        if not pending:
            return
        piece, batch, staged = pending.pop()
        product, a, ofm = self.product, self.product.a, self.product.ofm
        taps = product.depth // IFM_BLOCK if self.form.has_taps else 1
        ifm = Place(
            a.region,
            a.base + batch * a.batch_stride,
            (taps, product.rows, product.depth // taps),
            (IFM_BLOCK if taps > 1 else product.rows * a.row_stride, a.row_stride),
        )
        target = Place(
            ofm.region,
            ofm.base + batch * ofm.batch_stride + piece.first * ofm.item_bytes,
            (1, product.rows, piece.columns),
            (product.rows * ofm.row_stride, ofm.row_stride),
        )
        streams = []
        sizes = [*(layout.size_bytes for layout in piece.layouts), *piece.scale_bytes]
        suffixes = ["", "1"][: len(piece.layouts)]
        for name, size in zip([f"{kind}{suffix}" for kind in ("WEIGHT", "SCALE") for suffix in suffixes], sizes, strict=True):
            streams.append((name, self.region, staged, size))
            staged += size
        self.emitter.convolve((ifm, a.zero_point), target, product.output, self.form.block, streams)
        self.slots.observe(self.emitter.ops[-1:])


def replace_product(
    emitter: Emitter, constants: Constants, slots: Slots, product: Product, form: Form, free_slots: Sequence[int]
) -> list[Op] | None:
    """Return the operations that replace a product, or None if there are not enough slots for lookup tables."""
    start = len(emitter.ops)
    is_complete = Writer(emitter, constants, slots, product, form).write(free_slots)
    ops = emitter.ops[start:]
    del emitter.ops[start:]
    return ops if is_complete else None

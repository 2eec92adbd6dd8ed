"""The order of weights in a weight stream.

Source: npu-reference 4.2 for U55 and U65, 4.3 for U85.
"""

# A stream iterates over OFM blocks, over the IFM blocks of each, and over a pattern of kernel elements and channel groups. The
# pattern is computed once per block size, as (o, i, k) offsets.

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from ethorch.npu.arithmetic import ceil_div, round_up
from ethorch.npu.arrays import Array, Ints
from ethorch.npu.registers import LANES, U5X, U85
from ethorch.npu.weights import compiled

SIZES = 64  # cached block sizes
PATTERN_BYTES = 1 << 20  # cache size for block patterns; a typical network needs about this much
SUB_KERNEL = 8  # kernels are split into pieces of at most 8x8 elements, including dilation


@dataclass(frozen=True)
class Order:
    """The parameters that determine the order of weights in one stream.

    Attributes:
        kind: DW (depthwise), PK (part kernel first) or DF (depth first).
        kernel: Kernel size (KH, KW) without dilation.
        dilation, stride: Dilation and stride (y, x) of the kernel.
        ofm_unit: OFM microblock depth (OUB).
        stream, streams: Index of this stream, and number of streams of the operation.
        sparse: Whether the weights have 2:4 sparsity (U85 only).
        macs: MACs per cycle (U85 only).
    """

    kind: str
    ofm_depth: int
    ifm_depth: int
    kernel: tuple[int, int]
    dilation: tuple[int, int]
    block_depth: int
    ifm_bits: int
    ofm_unit: int
    stream: int = 0
    streams: int = 1
    stride: tuple[int, int] = (1, 1)
    sparse: bool = False
    macs: int = 0

    @property
    def weights(self) -> int:
        """The number of weights W[o][ky][kx][i], without padding."""
        return self.ofm_depth * self.kernel[0] * self.kernel[1] * self.ifm_depth


@dataclass(frozen=True, eq=False)
class Block:
    """The OFM and IFM channel offsets and the kernel element (-1 for padding) of each entry of a block, in stream order."""

    o: Array
    i: Array
    k: Array

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        """The addresses of ``o``, ``i`` and ``k``, for compiled code."""
        return self.o.ctypes.data, self.i.ctypes.data, self.k.ctypes.data

    @property
    def nbytes(self) -> int:
        return self.o.nbytes + self.i.nbytes + self.k.nbytes


Blocks = Iterator[tuple[int, int, int, int]]  # first OFM and IFM channel, OFM and IFM depth


@dataclass(frozen=True)
class _Traversal:
    """The functions that compute the order of weights for an NPU family."""

    blocks: Callable[[Order], Blocks]
    shape: Callable[[Order], Order]  # removes parameters that do not affect patterns
    size: Callable[[Order, int, int], int]  # counts the entries of a block, from shape, OFM depth and IFM depth
    pattern: Callable[[Order, int, int], Block]  # computes a block from the same arguments
    channels: Callable[[Order], tuple[int, int]]  # returns the first channel of a stream and the channel step


_patterns: OrderedDict[tuple[str, Order, int, int], Block] = OrderedDict()
_patterns_lock = threading.Lock()


def _block(family: str, shape: Order, ofm_depth: int, ifm_depth: int) -> Block:
    key = family, shape, ofm_depth, ifm_depth
    with _patterns_lock:
        block = _patterns.get(key)
        if block is None:
            block = _patterns[key] = _TRAVERSALS[family].pattern(shape, ofm_depth, ifm_depth)
            size = sum(b.nbytes for b in _patterns.values())
            while size > PATTERN_BYTES and len(_patterns) > 1:
                size -= _patterns.popitem(last=False)[1].nbytes
        _patterns.move_to_end(key)
        return block


def positions(order: Order, family: str) -> Ints:
    """Return each stream entry's index in the flat W[o][ky][kx][i] as int64, or -1 for padding."""
    taps = order.kernel[0] * order.kernel[1]
    parts = []
    way = _TRAVERSALS[family]
    (first, step), shape = way.channels(order), way.shape(order)
    for ob, ib, ofm_depth, ifm_depth in way.blocks(order):
        block = _block(family, shape, ofm_depth, ifm_depth)
        o, i = first + step * (block.o.astype(np.int64) + ob), block.i.astype(np.int64) + ib
        padding = (block.k < 0) | (o >= order.ofm_depth) | (i >= order.ifm_depth)
        parts.append(np.where(padding, -1, (o * taps + block.k) * order.ifm_depth + i))
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def place(order: Order, family: str, values: Array, flat: Array) -> None:
    """Assign ``values`` to ``flat[positions(order, family)]``, except for padding. Both must be int8, or both int16."""
    library = compiled.library()
    if library is None:
        where = positions(order, family)
        used = where >= 0
        flat[where[used]] = values[used]
        return
    assert values.dtype == flat.dtype and values.dtype in (np.int8, np.int16)
    assert values.flags.c_contiguous and flat.flags.c_contiguous
    assert len(flat) >= order.weights
    put = library.ethorch_place_8 if flat.itemsize == 1 else library.ethorch_place_16
    way = _TRAVERSALS[family]
    (first, step), shape = way.channels(order), way.shape(order)
    taps = order.kernel[0] * order.kernel[1]
    where = np.array((0, step, 0, taps, order.ofm_depth, order.ifm_depth), np.int64)
    source, targets, at = values.ctypes.data, (where.ctypes.data, flat.ctypes.data), 0
    for ob, ib, ofm_depth, ifm_depth in way.blocks(order):
        block = _block(family, shape, ofm_depth, ifm_depth)
        count = len(block.o)
        assert at + count <= len(values)
        where[0], where[2] = first + step * ob, ib
        put(source + values.itemsize * at, count, *block.addresses, *targets)
        at += count


def entries(order: Order, family: str) -> int:
    """Return the number of entries of ``positions``, without computing the entries."""
    way = _TRAVERSALS[family]
    shape = way.shape(order)
    return sum(way.size(shape, ofm_depth, ifm_depth) for _, _, ofm_depth, ifm_depth in way.blocks(order))


# ---------------------------------------------------------------------------------------------------------------------
# U55 and U65

IFM_UNIT = 8  # IFM microblock depth (IUB) of U55/U65


def _blocks_5x(order: Order) -> Blocks:
    depthwise, part_kernel = order.kind == "DW", order.kind == "PK"
    count = ceil_div(order.ofm_depth - order.stream, order.streams)
    block = max(ceil_div(order.block_depth - order.stream, order.streams), 1)
    ifm_block = 16 if part_kernel or order.ifm_bits == 16 else 32
    for ob in range(0, count, block):
        ofm_depth = min(block, count - ob)
        for ib in range(0, 1 if depthwise else order.ifm_depth, ifm_block):
            if depthwise:
                ifm_depth = IFM_UNIT
            elif part_kernel:
                ifm_depth = min(ifm_block, order.ifm_depth - ib)
            else:
                ifm_depth = ifm_block  # depth first pads to whole IFM blocks
            yield ob, ib, ofm_depth, ifm_depth


def _shape_5x(order: Order) -> Order:
    return replace(order, ofm_depth=0, ifm_depth=0, block_depth=0, stream=0, streams=1, stride=(1, 1), macs=0)


def _group_5x(order: Order) -> int:
    if order.kind == "DW":
        return 4
    return 1 if order.kind == "DF" else 2 if order.ifm_bits == 16 else 4


def _sub_kernels(order: Order) -> Iterator[tuple[int, int, int, int]]:
    (kh, kw), (dy, dx) = order.kernel, order.dilation
    for y in range(0, kh, SUB_KERNEL // dy):
        for x in range(0, kw, SUB_KERNEL // dx):
            yield y, x, min(kh - y, SUB_KERNEL // dy), min(kw - x, SUB_KERNEL // dx)


@lru_cache(SIZES)
def _size_5x(order: Order, ofm_depth: int, ifm_depth: int) -> int:
    elements = sum(round_up(sh * sw, _group_5x(order)) for _, _, sh, sw in _sub_kernels(order))
    lanes = 1 if order.kind == "DW" else round_up(ifm_depth, IFM_UNIT)
    return elements * round_up(ofm_depth, order.ofm_unit) * lanes


def _pattern_5x(order: Order, ofm_depth: int, ifm_depth: int) -> Block:
    kw = order.kernel[1]
    depthwise, part_kernel = order.kind == "DW", order.kind == "PK"
    unit = order.ofm_unit
    outer = np.arange(0, ifm_depth if part_kernel else 1, IFM_UNIT)
    inner = np.arange(0, 1 if part_kernel or depthwise else ifm_depth, IFM_UNIT)
    lanes = np.arange(1 if depthwise else IFM_UNIT)
    o_parts: list[Array] = []
    i_parts: list[Array] = []
    k_parts: list[Array] = []
    for ky0, kx0, sh, sw in _sub_kernels(order):
        e = np.arange(round_up(sh * sw, _group_5x(order)))
        k = np.where(e < sh * sw, (ky0 + e // sw) * kw + kx0 + e % sw, -1)
        iuo, ou, k, iui, oz, iz = np.ix_(outer, np.arange(0, ofm_depth, unit), k, inner, np.arange(unit), lanes)
        _append(o_parts, i_parts, k_parts, ou + oz, iuo + iui + iz, k)
    return Block(np.concatenate(o_parts), np.concatenate(i_parts), np.concatenate(k_parts))


def _append(o_parts: list[Array], i_parts: list[Array], k_parts: list[Array], o: Array, i: Array, k: Array) -> None:
    types = np.uint16, np.uint16, np.int32
    for part, array, dtype in zip((o_parts, i_parts, k_parts), np.broadcast_arrays(o, i, k), types, strict=True):
        part.append(array.astype(dtype).ravel())


# ---------------------------------------------------------------------------------------------------------------------
# U85


@dataclass(frozen=True)
class _Units:
    ifm_block: int
    ifm_unit: int  # IUB
    group: int  # RK: kernel elements processed at once
    step: int  # channels of one lane group
    pause: int  # P: padding elements after each group of a depthwise order


def _units(order: Order) -> _Units:
    wide = order.ifm_bits == 16
    if order.kind == "PK":
        ifm_block = 16
    elif order.ifm_bits == 32 or (order.macs <= 256 and order.ofm_unit == 16 and not order.sparse):
        ifm_block = 32
    else:
        ifm_block = 128 if order.sparse and order.ifm_bits == 8 else 64
    step = 16 if order.sparse else 8
    if order.kind == "DW":
        pause = 0 if order.ifm_bits == 8 and order.macs <= 256 else 2 if order.macs <= 512 else 6
        return _Units(ifm_block, 1, 10, 1, pause)
    if order.kind == "PK":
        ifm_unit = 8 if wide and not order.sparse else ifm_block
        return _Units(ifm_block, ifm_unit, 10 if wide or order.sparse else 5, step, 0)
    return _Units(ifm_block, ifm_block, 1, step, 0)


def _blocks_85(order: Order) -> Blocks:
    ifm_block = _units(order).ifm_block
    forwards = True
    for ob in range(0, order.ofm_depth, max(order.block_depth, 1)):
        ofm_depth = min(order.block_depth, order.ofm_depth - ob)
        starts = range(0, 1 if order.kind == "DW" else order.ifm_depth, ifm_block)
        for ib in starts if forwards else reversed(starts):
            ifm_depth = 1 if order.kind == "DW" else min(ifm_block, order.ifm_depth - ib)
            yield ob, ib, ofm_depth, ifm_depth
        forwards = not forwards


def _shape_85(order: Order) -> Order:
    return replace(order, ofm_depth=0, ifm_depth=0, block_depth=0, stream=0)


@lru_cache(SIZES)
def _size_85(order: Order, ofm_depth: int, ifm_depth: int) -> int:
    u = _units(order)
    elements = 0
    for _, _, sh, sw in _sub_kernels(order):
        count, padded = sh * sw, round_up(sh * sw, u.group)
        # Each group is followed by a pause, including a group completed by padding.
        elements += padded + u.pause * ceil_div(count, u.group)
    return elements * ceil_div(ifm_depth, u.ifm_unit) * u.ifm_unit * round_up(ofm_depth, order.ofm_unit) // order.streams


def _pattern_85(order: Order, ofm_depth: int, ifm_depth: int) -> Block:
    kh, kw = order.kernel
    u, unit, streams = _units(order), order.ofm_unit, order.streams
    outer = np.arange(0, ifm_depth, u.ifm_unit)
    inner = np.arange(0, u.ifm_unit, u.step)
    groups = np.arange(0, unit, LANES * streams)  # a stream has groups of 4 channels; these are the first stream's
    o_parts: list[Array] = []
    i_parts: list[Array] = []
    k_parts: list[Array] = []
    for kx0 in range(0, kw, SUB_KERNEL // order.dilation[1]):
        for ky0 in range(0, kh, SUB_KERNEL // order.dilation[0]):
            sh = min(kh - ky0, SUB_KERNEL // order.dilation[0])
            sw = min(kw - kx0, SUB_KERNEL // order.dilation[1])
            elements = np.array([-1 if e is None else (ky0 + e[0]) * kw + kx0 + e[1] for e in _elements(order, u, sh, sw)])
            iuo, ou, k, iui, oz, oi, iz = np.ix_(
                outer, np.arange(0, ofm_depth, unit), elements, inner, groups, np.arange(LANES), np.arange(u.step)
            )
            _append(o_parts, i_parts, k_parts, ou + oz + oi, iuo + iui + iz, k)
    return Block(np.concatenate(o_parts), np.concatenate(i_parts), np.concatenate(k_parts))


def _elements(order: Order, u: _Units, sh: int, sw: int) -> list[tuple[int, int] | None]:
    sy, sx = (1, 1) if order.kind == "DF" else order.stride
    left = round_up(sh * sw, u.group)
    ordered: list[tuple[int, int] | None] = []
    for yy in range(sy):
        for xx in range(sx):
            width = ceil_div(sw - xx, sx)
            for ky in range(ceil_div(sh - yy, sy)):
                for step in range(width):
                    kx = step if ky % 2 == 0 else width - 1 - step
                    left -= 1
                    ordered.append((yy + ky * sy, xx + kx * sx))
                    if left % u.group == 0:
                        ordered.extend([None] * u.pause)
    if left > 0:
        ordered.extend([None] * (left + u.pause))
    return ordered


def sequences(order: Order, values: Array) -> Array:
    """Split the weights of an interleaved fast stream (FWD) into an array [streams, n] (npu-reference 4.3)."""
    u = _units(order)
    block = order.ofm_unit * u.ifm_unit * u.group // order.streams
    return np.ascontiguousarray(values.reshape(-1, order.streams, block).swapaxes(0, 1)).reshape(order.streams, -1)


def _channels_5x(order: Order) -> tuple[int, int]:
    return order.stream, order.streams


def _channels_85(order: Order) -> tuple[int, int]:
    return LANES * order.stream, 1


_TRAVERSALS = {
    **dict.fromkeys(U5X, _Traversal(_blocks_5x, _shape_5x, _size_5x, _pattern_5x, _channels_5x)),
    U85: _Traversal(_blocks_85, _shape_85, _size_85, _pattern_85, _channels_85),
}

"""Decode weight and scale streams into biases, scales and signed 9-bit weights."""

# The standard format (npu-reference 4.1) packs variable-length symbols. ``_scan`` finds the start of each chunk of a slice
# serially. NumPy then extracts the symbols of all chunks in parallel. ``weights.cpp`` is faster. ``ethosu.mlw_codec.decode`` is
# not used because it terminates the process if a stream is malformed.

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass

import numpy as np

from ethorch.npu.arrays import Array, Bytes, Ints
from ethorch.npu.registers import U5X, U85
from ethorch.npu.weights import compiled
from ethorch.support.errors import MachineFault

ZDIV_NONE, ZDIV_END = 6, 7
WDIV_RAW = 7
CHUNK = 12  # bits of a weight chunk's first unary word
BALANCE = 8  # weights can precede zero runs by fewer than this
_WINDOW = 8  # bytes of a window; a chunk starts with at most 36 bits
_BLOCK = 1 << 14  # bytes whose windows are stored as Python ints at a time

_POPCOUNT = np.array([bin(i).count("1") for i in range(1 << CHUNK)], np.uint8)
_ONES = _POPCOUNT.tolist()
_BELOW = [(1 << n) - 1 for n in range(CHUNK + 1)]
# _RANK[u0, i]: number of set bits of u0 below i, i.e. the bit of u1 that belongs to bit i.
_BITS = (np.arange(1 << CHUNK)[:, None] >> np.arange(CHUNK)) & 1
_RANK = (np.cumsum(_BITS, axis=1) - _BITS).astype(np.uint8)


def decode_standard(data: bytes | Bytes) -> Array:
    """Decode all weights of a stream in the standard format, to int8 if they fit, and to int16 otherwise.

    Raises:
        MachineFault: The stream is malformed.
    """
    library = compiled.library()
    if library is not None:
        padded = np.empty(len(data) + compiled.PADDING, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        padded[len(data) :] = 0
        for bits in (8, 16):
            weights, owner = ctypes.c_void_p(), ctypes.c_void_p()
            decode, free = getattr(library, f"ethorch_decode_standard_{bits}"), getattr(library, f"ethorch_free_{bits}")
            count = decode(padded.ctypes.data, len(data), ctypes.byref(weights), ctypes.byref(owner))
            if count >= 0:
                pointer = ctypes.cast(weights, ctypes.POINTER(ctypes.c_int8 if bits == 8 else ctypes.c_int16))
                array = np.ctypeslib.as_array(pointer, (count,))
                weakref.finalize(array, free, owner)  # slices keep a reference to the array
                return array
    return narrow(decode_standard_numpy(bytes(data)))


def narrow(weights: Array) -> Array:
    """Convert weights to int8 if they fit."""
    return weights.astype(np.int8) if not weights.size or -128 <= weights.min() <= weights.max() <= 127 else weights


def decode_standard_numpy(data: bytes) -> Array:
    """Decode a standard stream to int16 without compiled code. Raise MachineFault with the cause if it is malformed."""
    bits = _Bits(data)
    at, end = 0, 8 * len(data)
    palette: _Palette | None = None
    parts: list[Array] = []
    while end - at >= 3:
        zdiv = bits.take(at, 3)
        at += 3
        if zdiv == ZDIV_END:
            at = -(-at // 8) * 8
            continue
        if zdiv > ZDIV_NONE - 2 and zdiv != ZDIV_NONE:
            raise MachineFault(f"weight stream: ZDIV {zdiv} at bit {at - 3}; expected 0..3, 6 or 7")
        count, wdiv = bits.take(at, 15) + 1, bits.take(at + 15, 3)
        truncated, new_palette = bits.take(at + 18, 1), bits.take(at + 19, 1)
        if wdiv == 6:
            raise MachineFault(f"weight stream: WDIV 6 at bit {at + 15}; expected 0..5 or 7")
        at += 20
        if new_palette:
            palette, at = _read_palette(bits, at)
        if palette is None:
            raise MachineFault(f"weight stream: the slice at bit {at} uses a palette, but the stream has not defined one")
        raw = wdiv == WDIV_RAW
        if raw:
            wdiv = palette.index_bits
        shape = _Slice(count, count + new_palette if zdiv != ZDIV_NONE else 0, wdiv, zdiv, bool(truncated), raw)
        weights, runs, at = _decode_slice(bits, at, shape)
        parts.append(_with_zeros(palette.lookup(weights), runs, new_palette))
    return np.concatenate(parts) if parts else np.zeros(0, np.int16)


class _Bits:
    def __init__(self, data: bytes):
        self.size = 8 * len(data)
        self.padded = np.frombuffer(bytes(data) + bytes(2 * _WINDOW), np.uint8)
        self._block: tuple[int, int, list[int]] = (0, 0, [])

    def take(self, at: int, count: int) -> int:
        if at + count > self.size:
            raise MachineFault(f"weight stream: cannot read {count} bits at bit {at}, because the stream has {self.size} bits")
        first = at >> 3
        word = int.from_bytes(self.padded[first : first + _WINDOW].tobytes(), "little")
        return (word >> (at & 7)) & ((1 << count) - 1)

    def windows(self, first: int, last: int) -> Array:
        last = min(last, len(self.padded) - _WINDOW)
        part = self.padded[first : last + _WINDOW]
        return np.ndarray((max(last - first, 0),), "<u8", part.tobytes(), 0, (1,))

    def block(self, at: int) -> tuple[int, int, list[int]]:
        if not self._block[0] <= at < self._block[1]:  # consecutive slices often share a block
            words = self.windows(at >> 3, (at >> 3) + _BLOCK).tolist()
            self._block = at & ~7, (at & ~7) + 8 * len(words), words
        return self._block

    def take_many(self, at: Ints, count: int) -> Ints:
        if not count or not len(at):
            return np.zeros(len(at), np.int64)
        first = int(at[0]) >> 3
        words = self.windows(first, (int(at[-1]) >> 3) + 1)
        shifted = words[(at >> 3) - first] >> (at & 7).astype(np.uint64)
        masked: Ints = (shifted & np.uint64((1 << count) - 1)).astype(np.int64)
        return masked


@dataclass(frozen=True)
class _Palette:
    entries: tuple[int, ...]
    direct: int
    entry_bits: int

    @property
    def index_bits(self) -> int:
        return (len(self.entries) - 1).bit_length() if self.entries else self.entry_bits

    def lookup(self, index: Ints) -> Ints:
        count = len(self.entries)
        folded = index - count + self.direct
        if count:
            table = np.array(self.entries, np.int64)
            folded = np.where(index < count, table[np.minimum(index, count - 1)], folded)
        return np.where(folded & 1, -(folded >> 1), folded >> 1)


def _read_palette(bits: _Bits, at: int) -> tuple[_Palette, int]:
    direct, size, width = bits.take(at, 5), bits.take(at + 5, 5), bits.take(at + 10, 3) + 2
    at += 13
    entries = size + 1 if size else 0
    values = tuple(bits.take(at + i * width, width) for i in range(entries))
    return _Palette(values, direct, width), at + entries * width


@dataclass(frozen=True)
class _Slice:
    weights: int
    runs: int  # 0: no zero runs
    wdiv: int
    zdiv: int
    truncated: bool
    raw: bool

    @property
    def zero_bits(self) -> int:
        return 12 if self.zdiv < 3 else 8

    @property
    def per_chunk(self) -> int:
        return 8 if self.raw and self.wdiv > 5 else CHUNK


def _decode_slice(bits: _Bits, start: int, s: _Slice) -> tuple[Ints, Ints, int]:
    # Round r contains the unary codes of chunk r at ``at[r]`` and the remainders of chunk r-1 at ``rest[r]``.
    rounds, end = _scan(bits, start, s)
    at, rest, flags = rounds
    w_rows, z_rows = np.flatnonzero(flags & 1), np.flatnonzero(flags & 2)
    emitted = np.zeros(len(at), np.int64)
    if s.raw:
        quotient = np.zeros(len(w_rows) * s.per_chunk, np.int64)
        emitted[w_rows] = s.per_chunk
    else:
        u0 = bits.take_many(at[w_rows], CHUNK)
        u1 = bits.take_many(rest[w_rows] - _POPCOUNT[u0], CHUNK)
        code = _BITS[u0] * (1 + ((u1[:, None] >> _RANK[u0]) & 1))
        emit = np.ones(code.shape, bool) if s.truncated else code < 2
        quotient = np.diff(np.cumsum(code.ravel())[emit.ravel()], prepend=0)
        emitted[w_rows] = emit.sum(axis=1)
    limited = _first(emitted, s.weights)
    weights = quotient[: s.weights] << s.wdiv
    weights += bits.take_many(_spread(rest[1:], limited[:-1], s.wdiv), s.wdiv)
    if not s.runs:
        return weights, np.zeros(0, np.int64), end
    zu = (
        bits.take_many(at[z_rows] + (0 if s.raw else CHUNK) * (flags[z_rows] & 1), s.zero_bits)[:, None] >> np.arange(s.zero_bits)
    ) & 1
    emitted = np.zeros(len(at), np.int64)
    emitted[z_rows] = (zu == 0).sum(axis=1)
    quotient = np.diff(np.cumsum(zu.ravel())[zu.ravel() == 0], prepend=0)
    runs = quotient[: s.runs] << s.zdiv
    runs += bits.take_many(_spread(rest[1:] + limited[:-1] * s.wdiv, _first(emitted, s.runs)[:-1], s.zdiv), s.zdiv)
    return weights, runs, end


Rounds = tuple[Ints, Ints, Ints]


def _scan(bits: _Bits, start: int, s: _Slice) -> tuple[Rounds, int]:
    # Bit 0 of the flags is set if the round has weights, bit 1 if it has zero runs.
    walk = _scan_runs if s.runs or s.raw else _scan_plain
    rounds, end = walk(bits, start, s)
    if end > bits.size:
        raise MachineFault(f"weight stream: the slice at bit {start} extends past the end of the stream at bit {bits.size}")
    return rounds, end


def _scan_plain(bits: _Bits, start: int, s: _Slice) -> tuple[Rounds, int]:
    at: list[int] = []
    append, ones_in, below = at.append, _ONES, _BELOW
    emitted_by_ones = [CHUNK] * (CHUNK + 1) if s.truncated else [CHUNK - n for n in range(CHUNK + 1)]
    pos, todo, wdiv, left = start, s.weights, s.wdiv, 0
    base = limit = 0
    words: list[int] = []
    while todo > 0:
        if pos >= limit:
            if pos > bits.size:
                break
            base, limit, words = bits.block(pos)
        word = words[(pos - base) >> 3] >> (pos & 7)
        append(pos)
        ones = ones_in[word & 0xFFF]
        emitted = emitted_by_ones[ones_in[(word >> 12) & below[ones]]]
        pos += 12 + ones + left
        if emitted > todo:
            emitted = todo
        left = emitted * wdiv
        todo -= emitted
    append(pos)
    flags = np.ones(len(at), np.int64)
    flags[-1] = 0
    return _rounds(bits, at, flags, s), pos + left


def _scan_runs(bits: _Bits, start: int, s: _Slice) -> tuple[Rounds, int]:
    at: list[int] = []
    flags: list[int] = []
    ones_in, below = _ONES, _BELOW
    nw, nz, wdiv, zdiv, zlen = s.weights, s.runs, s.wdiv, s.zdiv, s.zero_bits
    zmask = (1 << zlen) - 1
    full, coded, constant = s.per_chunk, not s.raw, s.raw or s.truncated
    pos, wpos, zpos, left = start, 0, 0, 0  # wpos, zpos: symbols started; left: remainder bits of the previous chunk
    base = limit = 0
    words: list[int] = []
    while pos <= bits.size:
        if pos >= limit:
            base, limit, words = bits.block(pos)
        word = words[(pos - base) >> 3] >> (pos & 7)
        lead = wpos - zpos if nz else 0
        at.append(pos)
        has_w = wpos < nw and lead < 8
        has_z = zpos < nz and lead >= 0
        flags.append(has_w | has_z << 1)
        if not (has_w or has_z):
            pos += left
            break
        next_left = ones = 0
        if has_w and coded:
            ones = ones_in[word & 0xFFF]
            word >>= 12
            pos += 12 + ones
        if has_z:
            count = zlen - ones_in[word & zmask]
            word >>= zlen
            pos += zlen
            zpos += count
            next_left = (count if zpos <= nz else count - zpos + nz) * zdiv
        if has_w:
            count = full if constant else 12 - ones_in[word & below[ones]]
            wpos += count
            next_left += (count if wpos <= nw else count - wpos + nw) * wdiv
        pos += left
        left = next_left
    return _rounds(bits, at, np.array(flags), s), pos


def _rounds(bits: _Bits, at: list[int], flags: Ints, s: _Slice) -> Rounds:
    starts = np.array(at)
    rest = starts + s.zero_bits * (flags >> 1)
    if not s.raw:
        coded = np.flatnonzero(flags & 1)
        rest[coded] += CHUNK + _POPCOUNT[bits.take_many(np.minimum(starts[coded], bits.size), CHUNK)]
    return starts, rest, flags


def _first(counts: Ints, limit: int) -> Ints:
    total = np.minimum(np.cumsum(counts), limit)
    return np.diff(total, prepend=0)


def _spread(starts: Ints, counts: Ints, step: int) -> Ints:
    before = np.cumsum(counts) - counts
    index = np.arange(int(counts.sum())) - np.repeat(before, counts)
    spread: Ints = np.repeat(starts, counts) + index * step
    return spread


def _with_zeros(weights: Ints, runs: Ints, leading: int) -> Array:
    if not len(runs):
        return weights.astype(np.int16)
    place = np.cumsum(np.concatenate(([0], runs[leading:] + 1)))
    first = int(runs[0]) if leading else 0
    out = np.zeros(first + int(place[-1]), np.int16)
    out[first + place[:-1]] = weights
    return out


def decode_fast(data: bytes | Bytes) -> Array:
    """Decode a stream in the fast format of U85 (FWD) to int8 or int16 (npu-reference 4.4).

    The stream contains one byte per weight, or indices of 2 or 4 bits into a table of 16 entries.
    """
    data = bytes(data)
    if len(data) < 32:
        raise MachineFault(f"fast weight stream: expected a 32-byte header, got {len(data)} bytes")
    header = int.from_bytes(data[:32], "little")
    raw, small = header & 1, header >> 1 & 1
    if (header >> 2) & ((1 << 102) - 1):
        raise MachineFault("fast weight stream: expected reserved header bits to be 0, but some are set")
    body = np.frombuffer(data, np.uint8, offset=32)
    if raw:
        adjust = (header >> 104) & 0xFF
        return narrow(body.view(np.int8).astype(np.int16) - (adjust - 256 if adjust & 0x80 else adjust))
    entries = [(header >> (112 + 9 * i)) & 0x1FF for i in range(16)]
    table = narrow(np.array([-(e >> 1) if e & 1 else e >> 1 for e in entries], np.int16))
    width = 2 if small else 4
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    weights: Array = table[((body[:, None] >> shifts) & ((1 << width) - 1)).ravel()]
    return weights


@dataclass(frozen=True)
class ScaleLayout:
    """The sizes of the bias and the multiplier, which precede the shift in a channel's ten-byte entry (npu-reference 5)."""

    bias_bytes: int
    scale_bytes: int
    scale_bits: int


SCALE_BYTES = 10
SCALE_LAYOUTS = {
    **{(family, accumulator): ScaleLayout(5, 4, 32) for family in U5X for accumulator in (0, 1)},
    (U85, 0): ScaleLayout(4, 4, 31),
    (U85, 1): ScaleLayout(6, 2, 15),
}


def decode_scales(data: bytes, layout: ScaleLayout) -> tuple[Ints, Ints, Ints]:
    """Decode a scale stream to biases, multipliers and shifts (int64). Ignore an incomplete last entry."""
    count = len(data) // SCALE_BYTES
    rows = np.frombuffer(data, np.uint8, count * SCALE_BYTES).reshape(count, SCALE_BYTES)
    b, s = layout.bias_bytes, layout.bias_bytes + layout.scale_bytes
    bias = _little_endian(rows[:, :b])
    bias -= (bias >> (8 * b - 1)) << (8 * b)
    return bias, _little_endian(rows[:, b:s]) & ((1 << layout.scale_bits) - 1), rows[:, s].astype(np.int64) & 0x3F


def _little_endian(rows: Bytes) -> Ints:
    wide = np.zeros((len(rows), 8), np.uint8)
    wide[:, : rows.shape[1]] = rows
    return wide.view("<i8")[:, 0].copy()

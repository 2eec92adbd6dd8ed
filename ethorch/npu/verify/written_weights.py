"""Weight streams that kernels write (``ethorch.npu.passes.attention``)."""

from __future__ import annotations

from ethorch.npu.arrays import Array, Bytes

#: Declaration in ``NEW_FORMS``.
WRITTEN_WEIGHTS = "weights: written by kernels and copied"
_HEADER = (0, 1, 2, 3, 6, 7, 8, 9)  # constant bytes; bytes 4 and 5 contain halves of the first weight
_FIRST_WEIGHT = 9  # byte of weight 0 if it were in the second slice
_LEAST_END = 1  # bytes 0xFF: ZDIV 7
_SLICE, _SLICE_BITS = 36 + 8, 36  # first bit of the second header, bits of a header
#: Fields of a slice header: first bit, bits, value (npu-reference 4.1).
_FIELDS = ((0, 3, 6), (18, 3, 7), (22, 1, 1), (23, 5, 1), (28, 5, 0), (33, 3, 6))


def count_written_weights(content: Bytes, is_constant: Array) -> int | None:
    """Return the number of weights in a stream, or None if its constant bytes differ from those of kernel-written streams."""
    if len(content) <= _FIRST_WEIGHT or not all(is_constant[at] for at in _HEADER):
        return None
    present = sum(int(content[at]) << 8 * at for at in _HEADER)
    mask = sum(0xFF << 8 * at for at in _HEADER)
    for start in (0, _SLICE):
        for first, bits, value in _FIELDS:
            part = ((1 << bits) - 1) << start + first
            if (present & part) != (value << start + first & mask & part):
                return None
    if present >> 3 & 0x7FFF:
        return None
    # Bit 0 of the second slice's length is in byte 5, which the first weight shares. It is 0, because streams have even lengths.
    count = 2 + (present >> _SLICE + 3 & 0x7FFE)
    end = content[_FIRST_WEIGHT + count :]
    is_ended = len(end) >= _LEAST_END and bool(is_constant[_FIRST_WEIGHT + count :].all()) and bool((end == 0xFF).all())
    return count if is_ended else None

"""The built-in int16 tanh table of U55 and U65, for TANH and SIGMOID activations (npu-reference 6.4)."""

# Source: the constants that Vela 5.2 generates for a TFLite int16 TANH and LOGISTIC on U85. They are TFLite's sigmoid table, odd
# around 0: 65536/(1 + exp(-i/24)) - 32768 for i = 0..255, rounded to nearest. 44 entries are larger by one.

from __future__ import annotations

from functools import cache

import numpy as np

from ethorch.npu.arrays import Bytes

# Entries of TFLite's table that exceed the nearest integer by one.
_ONE_HIGHER = (
    4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40, 41, 43, 44, 45, 46, 49, 50,
    54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255,
)  # fmt: skip


@cache
def tanh_table(first_slope: int) -> Bytes:
    """Return 512 pairs (2 KiB) of a base and the slope to the next base. The first slope is 0 for TANH and 1 for SIGMOID."""
    half = np.round(65536 / (1 + np.exp(-np.arange(256) / 24))).astype(np.int64) - 32768
    half[list(_ONE_HIGHER)] += 1
    base = np.concatenate((-half[-1:], -half[:0:-1], half))
    slope = np.diff(np.append(base, 32767))
    slope[0] = first_slope
    pairs: Bytes = np.stack((base, slope), axis=1).astype("<i2").view(np.uint8).ravel()
    return pairs

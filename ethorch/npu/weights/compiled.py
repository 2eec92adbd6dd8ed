"""The compiled half of the simulator: ``weights.cpp``, built on first use (``ethorch.support.native``).

Everything in it has a NumPy twin, which runs where there is no compiler. Tests hold the two against each other.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from ethorch.support import native
from ethorch.support.errors import HostError

PADDING = 64  # bytes that must be readable behind a weight stream


def build() -> Path:
    """The library as a file; HostError where it cannot be built."""
    return native.build("npu", [Path(__file__).with_name("weights.cpp")], ["-O2"])


@cache
def library() -> ctypes.CDLL | None:
    """The library; None where it cannot be built, or when ETHORCH_NPU_NUMPY is set."""
    if os.environ.get("ETHORCH_NPU_NUMPY"):
        return None
    try:
        found = native.load(build)
    except HostError:
        return None
    pointer = ctypes.POINTER(ctypes.c_void_p)
    for bits in (8, 16):
        decode, place, free = (getattr(found, f"ethorch_{name}_{bits}") for name in ("decode_standard", "place", "free"))
        decode.argtypes = ctypes.c_void_p, ctypes.c_int64, pointer, pointer
        decode.restype = ctypes.c_int64
        place.argtypes = (ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 5)
        place.restype = None
        free.argtypes = (ctypes.c_void_p,)
        free.restype = None
    return found

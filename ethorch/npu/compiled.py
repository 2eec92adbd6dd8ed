"""The compiled half of the simulator: ``weights.cpp``, built on first use (``ethorch.native``).

Everything in it has a NumPy twin, which runs where there is no compiler, and which tests hold against it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from ethorch import native
from ethorch.errors import HostError

PADDING = 64  # bytes that must be readable behind a weight stream


@cache
def library() -> ctypes.CDLL | None:
    """The library; None where it cannot be built, or when ETHORCH_NPU_NUMPY is set."""
    if os.environ.get("ETHORCH_NPU_NUMPY"):
        return None
    try:
        found = native.load(lambda: native.build("npu", [Path(__file__).with_name("weights.cpp")], ["-O2"]))
    except HostError:
        return None
    weights, owner = ctypes.POINTER(ctypes.POINTER(ctypes.c_int16)), ctypes.POINTER(ctypes.c_void_p)
    found.ethorch_decode_standard.argtypes = ctypes.c_char_p, ctypes.c_int64, weights, owner
    found.ethorch_decode_standard.restype = ctypes.c_int64
    found.ethorch_place.argtypes = (ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 5)
    found.ethorch_place.restype = None
    found.ethorch_free.argtypes = (ctypes.c_void_p,)
    found.ethorch_free.restype = None
    return found

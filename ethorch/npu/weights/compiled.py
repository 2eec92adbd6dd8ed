"""Compiled code for weight streams: ``weights.cpp``, built on first use (``ethorch.support.native``)."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from ethorch.support import native
from ethorch.support.errors import HostError

PADDING = 64  # bytes that must be readable after a weight stream


def build() -> Path:
    return native.build("npu", [Path(__file__).with_name("weights.cpp")], ["-O2"])


@cache
def library() -> ctypes.CDLL | None:
    """Return the library, or None if it cannot be built or ETHORCH_NPU_NUMPY is set."""
    if os.environ.get("ETHORCH_NPU_NUMPY"):
        return None
    try:
        handle = native.load(build)
    except HostError:
        return None
    pointer = ctypes.POINTER(ctypes.c_void_p)
    for bits in (8, 16):
        decode, place, free = (getattr(handle, f"ethorch_{name}_{bits}") for name in ("decode_standard", "place", "free"))
        decode.argtypes = ctypes.c_void_p, ctypes.c_int64, pointer, pointer
        decode.restype = ctypes.c_int64
        place.argtypes = (ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 5)
        place.restype = None
        free.argtypes = (ctypes.c_void_p,)
        free.restype = None
    return handle

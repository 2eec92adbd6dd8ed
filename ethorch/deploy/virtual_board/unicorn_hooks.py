"""The emulator's hooks in C++ (``cpp/hooks.cpp``). Python hooks would cost a microsecond per instruction block."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from ctypes import c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from ethorch.support import native
from ethorch.support.errors import HostError

_KNOWN, MOST_MEMORIES = 1 << 14, 64
DIRTY, STALE = 1, 2  # flags of a cache line that the CPU or the NPU has written
_FOLDER = Path(__file__).parent / "cpp"


class MemoryRow(ctypes.Structure):
    _fields_ = (("base", c_uint64), ("size", c_uint64), ("bytes", c_void_p), ("lines", c_void_p))


class Hooks(ctypes.Structure):
    """The state of the hooks. The layout must match the struct in ``hooks.cpp``."""

    _fields_ = (
        ("instructions", c_uint64),
        ("stop_at", c_uint64),
        ("stop", c_void_p),
        ("memories", c_uint64),
        ("memory", MemoryRow * MOST_MEMORIES),
        ("line_shift", c_uint64),
        ("caching", c_uint64),
        ("stale_reads", c_uint64),
        ("stale_address", c_uint64),
        ("stale_at", c_uint64),
        ("last_block", c_uint64),
        ("blocks", c_uint64 * _KNOWN),
        ("counts", c_uint32 * _KNOWN),
    )


def build() -> Path:
    """Return the path of the hook library. If it is not cached, build it with the host's C++ compiler or ziglang.

    Raise HostError if no compiler is installed.
    """
    otherwise = [sys.executable, "-m", "ziglang", "cc", "-nostdlib++"] if importlib.util.find_spec("ziglang") else []
    purpose = "the virtual board, which counts instructions,"
    return native.build("board-hooks", [_FOLDER / "hooks.cpp"], ["-O2"], purpose=purpose, otherwise=otherwise)


@cache
def library() -> ctypes.CDLL:
    hooks = native.load(build)
    hooks.ethorch_hooks_size.restype = c_uint64
    if hooks.ethorch_hooks_size() != ctypes.sizeof(Hooks):
        raise HostError(
            f"the compiled hooks expect a struct of {hooks.ethorch_hooks_size()} bytes, got {ctypes.sizeof(Hooks)}. The cached "
            "library board-hooks is outdated; delete it to build it again. `ethorch doctor` prints the folder of the cache."
        )
    return hooks


def find_hook(name: str) -> int:
    hook_address = ctypes.cast(getattr(library(), name), c_void_p).value
    assert hook_address is not None
    return hook_address

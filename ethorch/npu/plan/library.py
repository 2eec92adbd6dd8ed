"""The compiled code in ``cpp/``, built for this CPU on first use (``ethorch.support.native``).

ETHORCH_NPU_LEVEL selects a level of CPU features instead of the best one. ETHORCH_NPU_NUMPY disables compiled code.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import weakref
from ctypes import POINTER, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

from ethorch.npu.plan import layout
from ethorch.support import native
from ethorch.support.errors import HostError

FOLDER = Path(__file__).parent / "cpp"
# Intermediate sums wrap at 32 bits, memory is read as several types, and GCC 12 reports uninitialized values in its own
# intrinsics.
FLAGS = ["-O3", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno", "-w"]

# Level -> (required CPU features, named as in /proc/cpuinfo; compiler flags).
LEVELS: dict[str, tuple[frozenset[str], list[str]]] = {
    "avx512": (
        frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi", "fma", "avx2"}),
        [
            "-mavx512f",
            "-mavx512bw",
            "-mavx512dq",
            "-mavx512vl",
            "-mavx512vnni",
            "-mavx512vbmi",
            "-mfma",
            "-mprefer-vector-width=512",
        ],
    ),
    "avx2": (frozenset({"avx2", "fma"}), ["-mavx2", "-mfma"]),
    "plain": (frozenset(), []),
}


@cache
def cpu_features() -> frozenset[str]:
    """Return the CPU features by their Linux names, or an empty set if they are unknown."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()  # other CPUs use the compiler's baseline, e.g. NEON on 64-bit Arm
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = [line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")]
    return frozenset.intersection(*map(frozenset, lines)) if lines else frozenset()


def levels() -> list[str]:
    """Return the levels of CPU features that this CPU supports, best first."""
    return [name for name, (needs, _) in LEVELS.items() if needs <= cpu_features()]


def build(level: str, extra: tuple[str, ...] = ()) -> Path:
    """Build the library for a level of CPU features. Raise HostError if the build fails."""
    files = sorted(FOLDER.glob("*.cpp"))
    flags = [*FLAGS, *LEVELS[level][1], *extra]
    return native.build(f"npu-plan-{level}", files, flags, sorted(FOLDER.glob("*.h")), purpose="the NPU simulator")


@cache
def library() -> ctypes.CDLL | None:
    """Return the library, or None if it cannot be built or ETHORCH_NPU_NUMPY is set."""
    if os.environ.get("ETHORCH_NPU_NUMPY"):
        return None
    requested = os.environ.get("ETHORCH_NPU_LEVEL")
    for level in [requested] if requested in levels() else levels():
        try:
            handle = native.load(lambda level=level: build(level))  # type: ignore[misc]
        except HostError:
            continue  # an old compiler may not support the flags of a new CPU
        return declare(handle)
    return None


def declare(handle: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the library's functions. Raise HostError if its structs differ in size from those in ``layout``."""
    sizes = [handle.ethorch_size(number) for number in range(len(layout.SIZED) + 1)]
    if sizes != [*map(ctypes.sizeof, layout.SIZED), 0]:
        raise HostError(
            f"the compiled simulator's structs have sizes {sizes}; expected the sizes in ethorch.npu.plan.layout. "
            "Reinstall ethorch."
        )
    handle.ethorch_new_buffers.restype = c_void_p
    handle.ethorch_free_buffers.argtypes = (c_void_p,)
    handle.ethorch_free_buffers.restype = None
    handle.ethorch_run.argtypes = (c_void_p, c_int64, c_int64, POINTER(layout.Machine), c_void_p, c_void_p)
    handle.ethorch_run.restype = c_int64
    handle.ethorch_run_images.argtypes = (
        c_void_p, c_int64, POINTER(layout.Machine), c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64,
        POINTER(c_int64),
    )  # fmt: skip
    handle.ethorch_run_images.restype = c_int64
    handle.ethorch_packed_bytes.argtypes = (c_int64, c_int64, c_int64, c_int)
    handle.ethorch_packed_bytes.restype = c_int64
    handle.ethorch_pack_weights.argtypes = (c_void_p, c_int, c_int64, c_int64, c_int64, c_int, c_void_p)
    handle.ethorch_pack_weights.restype = None
    return handle


class Buffers:
    """The work buffers of one thread, which its runs share."""

    def __init__(self, handle: ctypes.CDLL):
        self.pointer = handle.ethorch_new_buffers()
        if not self.pointer:
            raise MemoryError
        weakref.finalize(self, handle.ethorch_free_buffers, self.pointer)


_local = threading.local()


def buffers() -> Buffers:
    handle = library()
    assert handle is not None
    if not hasattr(_local, "buffers"):
        _local.buffers = Buffers(handle)
    result: Buffers = _local.buffers
    return result

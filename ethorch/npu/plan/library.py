"""The compiled half of the plan: ``cpp/``, built on first use (``ethorch.support.native``) for what this CPU can do.

There is one library for each level, since a compiler has to be told which instructions it may use. ETHORCH_NPU_LEVEL names a
level; otherwise it is the best one that the CPU and the compiler know. ETHORCH_NPU_NUMPY switches compiled code off.
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
# Sums wrap at 32 bits where the result is proven to fit, memory is read as several types, and GCC 12 takes the undefined halves
# of its own intrinsics for uninitialized.
FLAGS = ["-O3", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno", "-w"]

# Level -> (features that the CPU has to have, as /proc/cpuinfo calls them; the compiler's flags).
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
    """What the CPU knows, in Linux's words; empty where nobody says."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()  # of other CPUs the compiler's baseline is used, on 64-bit Arm NEON
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = [line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")]
    return frozenset.intersection(*map(frozenset, lines)) if lines else frozenset()


def levels() -> list[str]:
    """The levels that this CPU can run, the best first."""
    return [name for name, (needs, _) in LEVELS.items() if needs <= cpu_features()]


def build(level: str, extra: tuple[str, ...] = ()) -> Path:
    """The library of a level; ``extra`` are further flags. HostError where it cannot be built."""
    files = sorted(FOLDER.glob("*.cpp"))
    flags = [*FLAGS, *LEVELS[level][1], *extra]
    return native.build(f"npu-plan-{level}", files, flags, sorted(FOLDER.glob("*.h")), purpose="the NPU simulator")


@cache
def library() -> ctypes.CDLL | None:
    """The library; None where it cannot be built, or when ETHORCH_NPU_NUMPY is set."""
    if os.environ.get("ETHORCH_NPU_NUMPY"):
        return None
    wanted = os.environ.get("ETHORCH_NPU_LEVEL")
    for level in [wanted] if wanted in levels() else levels():
        try:
            return declare(native.load(lambda level=level: build(level)))  # type: ignore[misc]
        except HostError:
            continue  # an old compiler does not know the flags of a new CPU
    return None


def declare(found: ctypes.CDLL) -> ctypes.CDLL:
    """Types of the library's functions. HostError when its structs are not those of ``layout``."""
    sizes = [found.ethorch_size(number) for number in range(len(layout.SIZED) + 1)]
    if sizes != [*map(ctypes.sizeof, layout.SIZED), 0]:
        raise HostError(f"the compiled library's structs have sizes {sizes}, which are not those of ethorch.npu.plan.layout.")
    found.ethorch_new_buffers.restype = c_void_p
    found.ethorch_free_buffers.argtypes = (c_void_p,)
    found.ethorch_free_buffers.restype = None
    found.ethorch_run.argtypes = (c_void_p, c_int64, c_int64, POINTER(layout.Machine), c_void_p, c_void_p)
    found.ethorch_run.restype = c_int64
    found.ethorch_run_images.argtypes = (
        c_void_p, c_int64, POINTER(layout.Machine), c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64,
        POINTER(c_int64),
    )  # fmt: skip
    found.ethorch_run_images.restype = c_int64
    found.ethorch_packed_bytes.argtypes = (c_int64, c_int64, c_int64, c_int)
    found.ethorch_packed_bytes.restype = c_int64
    found.ethorch_pack_weights.argtypes = (c_void_p, c_int, c_int64, c_int64, c_int64, c_int, c_void_p)
    found.ethorch_pack_weights.restype = None
    return found


class Buffers:
    """What a thread's steps work in, from one run to the next."""

    def __init__(self, found: ctypes.CDLL):
        self.pointer = found.ethorch_new_buffers()
        if not self.pointer:
            raise MemoryError
        weakref.finalize(self, found.ethorch_free_buffers, self.pointer)


_local = threading.local()


def buffers() -> Buffers:
    """This thread's buffers."""
    found = library()
    assert found is not None
    if not hasattr(_local, "buffers"):
        _local.buffers = Buffers(found)
    result: Buffers = _local.buffers
    return result

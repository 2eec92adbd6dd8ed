"""What a method really allocates, measured: ExecuTorch's own allocators load it and run it in this process.

The structures that ExecuTorch makes of a program hold pointers, so its method allocator needs more on a computer of 64 bits than
on a Cortex-M. All other sizes are the same there.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.formats import pte
from ethorch.formats.payload import DelegatePayload
from ethorch.runtime.checks import check_kernel_calls, payloads
from ethorch.runtime.delegate import host_backend
from ethorch.runtime.library import load_executor

_AMPLE = 1 << 26  # for an allocator whose size the caller leaves open; pages that are not touched cost nothing
_STAGES = ("read the program", "load method {}", "set the inputs of method {}", "run method {}")


@dataclass(frozen=True)
class Allocated:
    """What one method took from each of ExecuTorch's allocators, in bytes.

    Attributes:
        planned: sizes of the memories that the program plans, in its order.
        method_pool_bytes: of the method allocator: what ExecuTorch makes of the program when it loads a method.
        temporary_bytes: most of the temporary allocator at any time. A delegate takes its scratch region from it, as with Arm's
            delegate in firmware.
    """

    planned: tuple[int, ...]
    method_pool_bytes: int
    temporary_bytes: int

    @property
    def total_bytes(self) -> int:
        """All three together."""
        return sum(self.planned) + self.method_pool_bytes + self.temporary_bytes


class _Idle:
    """A machine that has the scratch region and computes nothing: what is allocated does not depend on values."""

    def __init__(self, payload: DelegatePayload):
        self._scratch = np.zeros(payload.scratch_bytes, np.uint8)

    def region(self, index: int) -> npt.NDArray[Any]:
        return self._scratch

    def run(self) -> None:
        pass


def measure(
    program: bytes, method: str = "forward", *, method_pool_bytes: int | None = None, temporary_bytes: int | None = None
) -> Allocated:
    """Load a method of a .pte and run it once, on zeros and with idle NPUs, and report what it allocated.

    Args:
        program: the .pte.
        method: which entry point.
        method_pool_bytes, temporary_bytes: sizes of the two allocators; None is ample.

    Raises:
        ProgramError, PayloadError: the file or a delegate in it is malformed.
        HostError: no such method; no compiler; an operator without kernel; an allocator is too small.
    """
    parsed = pte.read(program)
    description = parsed.methods[pte.entry_point(parsed, method)]
    payloads(description)
    check_kernel_calls(description)
    backend = host_backend()
    backend.check_registered(description)
    library = load_executor()
    planned = description.memories[1:]
    used, stage = (ctypes.c_uint64 * 3)(), ctypes.c_int()
    named = {key: data for delegate in description.delegates for key, data in delegate.named.items()}
    with backend.calling(f"measure method {method!r}", _Idle, named):
        backend.library.ethorch_allocate_scratch(1)
        try:
            error = library.ethorch_measure(
                program,
                ctypes.c_size_t(len(program)),
                method.encode(),
                ctypes.c_size_t(len(planned)),
                (ctypes.c_uint64 * max(len(planned), 1))(*planned),
                ctypes.c_uint32(_AMPLE if method_pool_bytes is None else method_pool_bytes),
                ctypes.c_uint32(_AMPLE if temporary_bytes is None else temporary_bytes),
                used,
                ctypes.byref(stage),
            )
        finally:
            backend.library.ethorch_allocate_scratch(0)
        if error:
            what = _STAGES[stage.value].format(repr(method))
            raise RuntimeError(f"could not {what}, error {error:#x}")  # with what ExecuTorch said, it becomes a HostError
    return Allocated(tuple(planned), int(used[0]), int(max(used[1], used[2])))

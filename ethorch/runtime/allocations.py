"""Run a method in this process to measure the memory that it allocates."""

# ExecuTorch's structures contain pointers, so the method allocator requires more bytes on a 64-bit host than on a Cortex-M. All
# other sizes are equal.

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

_AMPLE = 1 << 26  # default size of an allocator; unused pages do not occupy memory
_STAGES = ("read the program", "load method {}", "set the inputs of method {}", "run method {}")


@dataclass(frozen=True)
class Allocated:
    """The bytes that a method uses in each of ExecuTorch's allocators.

    Attributes:
        planned: Sizes of the planned memories, in order.
        method_pool_bytes: Size of the structures that ExecuTorch allocates when loading the method.
        temporary_bytes: Peak use of the temporary allocator, including the scratch regions of delegates.
    """

    planned: tuple[int, ...]
    method_pool_bytes: int
    temporary_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.planned) + self.method_pool_bytes + self.temporary_bytes


class _Idle:
    """A machine that does not execute the payload. Allocations do not depend on computed values."""

    def __init__(self, payload: DelegatePayload):
        self._scratch = np.zeros(payload.scratch_bytes, np.uint8)

    def region(self, index: int) -> npt.NDArray[Any]:
        return self._scratch

    def run(self) -> None:
        pass


def measure(
    program: bytes, method: str = "forward", *, method_pool_bytes: int | None = None, temporary_bytes: int | None = None
) -> Allocated:
    """Load a method of a .pte, run it once on all-zero inputs without simulating the NPU, and return the allocations.

    Args:
        method_pool_bytes, temporary_bytes: Allocator sizes in bytes. Default: 64 MiB each.

    Raises:
        ProgramError, PayloadError: The file or a delegate is malformed.
        SpecError: The method does not exist.
        HostError: A compiler or a kernel is missing, or an allocator is too small.
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
            step = _STAGES[stage.value].format(repr(method))
            raise RuntimeError(f"failed to {step}: error code {error:#x}")  # `calling` converts this to a HostError
    return Allocated(tuple(planned), int(used[0]), int(max(used[1], used[2])))

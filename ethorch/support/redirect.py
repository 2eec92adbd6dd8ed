"""A lock for calls into Vela and ExecuTorch's runtime, which redirect std::cout.

If two threads redirect std::cout concurrently, the process can crash. Such calls therefore acquire ``COUT_LOCK``, and forks
wait for the lock.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

COUT_LOCK = threading.RLock()

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=COUT_LOCK.acquire, after_in_parent=COUT_LOCK.release, after_in_child=COUT_LOCK.release)


@contextmanager
def without_lines(*beginnings: bytes) -> Iterator[list[bytes]]:
    """Buffer the standard output of C code, and print the lines that do not start with one of ``beginnings``.

    Yields:
        A list that receives the omitted lines when the context ends.
    """
    omitted: list[bytes] = []
    try:
        stdout_copy = os.dup(1)
    except OSError:  # the process has no standard output
        yield omitted
        return
    with tempfile.TemporaryFile() as buffered:
        _flush()
        os.dup2(buffered.fileno(), 1)
        try:
            yield omitted
        finally:
            _flush()
            os.dup2(stdout_copy, 1)
            os.close(stdout_copy)
            buffered.seek(0)
            lines = list(buffered)
            omitted += (line for line in lines if line.startswith(beginnings))
            rest = memoryview(b"".join(line for line in lines if not line.startswith(beginnings)))
            while rest:
                rest = rest[os.write(1, rest) :]


def _flush() -> None:
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)

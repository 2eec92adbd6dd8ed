"""The lock around calls that redirect std::cout: those into Vela and into ExecuTorch's runtime.

Both point std::cout at a buffer of the call (pybind11's scoped_ostream_redirect) and put back what they found. When two
threads' calls overlap, std::cout is left with the buffer of a call that has ended, and the next call to flush it ends the
process. So one thread at a time makes such calls, holding ``COUT_LOCK``.

A fork waits until no other thread is inside: the child would have a lock that nobody releases, and a std::cout that points
into the stack of a thread it does not have.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

COUT_LOCK = threading.RLock()

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=COUT_LOCK.acquire, after_in_parent=COUT_LOCK.release, after_in_child=COUT_LOCK.release)


@contextmanager
def without_lines(*beginnings: bytes) -> Iterator[list[bytes]]:
    """Hold back what C code prints to standard output, and print it afterwards without the lines with these beginnings.

    The program's own output may be on standard output, such as JSON that another program reads.

    Yields:
        A list that holds the omitted lines after the context ends.
    """
    omitted: list[bytes] = []
    try:
        kept = os.dup(1)
    except OSError:  # a process without standard output
        yield omitted
        return
    with tempfile.TemporaryFile() as waiting:
        _flush()
        os.dup2(waiting.fileno(), 1)
        try:
            yield omitted
        finally:
            _flush()
            os.dup2(kept, 1)
            os.close(kept)
            waiting.seek(0)
            lines = list(waiting)
            omitted += (line for line in lines if line.startswith(beginnings))
            rest = memoryview(b"".join(line for line in lines if not line.startswith(beginnings)))
            while rest:
                rest = rest[os.write(1, rest) :]


def _flush() -> None:
    """Write out what C's own buffers hold."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)

"""The lock around calls that redirect std::cout: those into Vela and into ExecuTorch's runtime.

Both point std::cout at a buffer of the call (pybind11's scoped_ostream_redirect) and put back what they found. When two
threads' calls overlap, std::cout is left with the buffer of a call that has ended, and the next call to flush it ends the
process. So one thread at a time makes such calls, holding ``COUT_LOCK``.

A fork waits until no other thread is inside: the child would have a lock that nobody releases, and a std::cout that points
into the stack of a thread it does not have.
"""

from __future__ import annotations

import os
import threading

COUT_LOCK = threading.RLock()

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=COUT_LOCK.acquire, after_in_parent=COUT_LOCK.release, after_in_child=COUT_LOCK.release)

"""The lock around work that only one thread of a process may do at a time: exporting, tracing and converting models.

``torch.export`` and torch's tracers replace functions of torch while they run, and keep state of the process. So each function of
ethorch that exports or compiles holds ``EXPORT_LOCK``, and waits for the threads that hold it. Running programs needs no lock.

A fork waits, too: the child would have a lock that nobody releases, and a torch in the middle of an export. It takes this lock
before that of ``redirect``, as compiling does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ethorch.support import redirect
from ethorch.support.quiet import quiet

assert redirect.COUT_LOCK  # registered first, it is acquired last

EXPORT_LOCK = threading.RLock()

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=EXPORT_LOCK.acquire, after_in_parent=EXPORT_LOCK.release, after_in_child=EXPORT_LOCK.release)


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold ``EXPORT_LOCK``, and keep other libraries quiet. As a decorator, around a function."""
    with EXPORT_LOCK, quiet():
        yield

"""Lock of export, trace and conversion, which only one thread of a process may run at a time.

``torch.export`` and torch's tracers have global state. Each function of ethorch that exports or compiles acquires ``EXPORT_LOCK``.

Forks acquire it too, because the child would inherit a lock that is never released, and before the lock of ``redirect``, as
compiling does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ethorch.support import redirect
from ethorch.support.quiet import quiet

assert redirect.COUT_LOCK  # registered first, so acquired last

EXPORT_LOCK = threading.RLock()

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=EXPORT_LOCK.acquire, after_in_parent=EXPORT_LOCK.release, after_in_child=EXPORT_LOCK.release)


@contextmanager
def exclusive() -> Iterator[None]:
    """Acquire ``EXPORT_LOCK`` and silence other libraries. Also a decorator."""
    with EXPORT_LOCK, quiet():
        yield

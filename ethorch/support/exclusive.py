"""A lock for export, tracing and conversion, because ``torch.export`` and torch's tracers have global state.

Each function of ethorch that exports or compiles acquires ``EXPORT_LOCK``. ``os.fork`` also acquires it, so that
the child process does not inherit a lock held by another thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ethorch.support import redirect
from ethorch.support.quiet import quiet

assert redirect.COUT_LOCK  # registered first, so a fork acquires it last, like compilation

EXPORT_LOCK = threading.RLock()

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=EXPORT_LOCK.acquire, after_in_parent=EXPORT_LOCK.release, after_in_child=EXPORT_LOCK.release)


@contextmanager
def exclusive() -> Iterator[None]:
    """Acquire ``EXPORT_LOCK`` and silence other libraries. Use this function as a context manager or decorator."""
    with EXPORT_LOCK, quiet():
        yield

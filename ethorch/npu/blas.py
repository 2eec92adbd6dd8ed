"""Limit NumPy's matrix products to one thread while the simulator runs.

Several threads save little time, because the matrices are small. On a busy computer, waiting OpenBLAS threads slow the simulator.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

_lock = threading.Lock()
_inside = 0
_before = 0


@cache
def _openblas() -> tuple[ctypes._CFuncPtr, ctypes._CFuncPtr] | None:  # type: ignore[name-defined]
    for path in sorted(Path(np.__file__).parent.parent.glob("numpy.libs/lib*openblas*")):
        library = ctypes.CDLL(str(path))
        for suffix in ("64_", ""):
            for prefix in ("scipy_openblas", "openblas"):
                names = f"{prefix}_get_num_threads{suffix}", f"{prefix}_set_num_threads{suffix}"
                if all(hasattr(library, name) for name in names):
                    return getattr(library, names[0]), getattr(library, names[1])
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the whole process while a Python thread is inside the context."""
    global _inside, _before
    functions = _openblas()
    if functions is None:
        yield
        return
    get, put = functions
    with _lock:
        if not _inside:
            _before = get()
            put(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                put(_before)

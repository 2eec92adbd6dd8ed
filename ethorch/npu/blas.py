"""Keep NumPy's products on one thread while the simulator runs.

The products of a stream are small, since a stripe is a few rows. So a second thread gains little on an idle computer. On a
busy one OpenBLAS's threads spin for each other: mobilenet_v2 took 0.9 s instead of 0.2 s beside a busy process.
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
    """(get, set) number of threads of the OpenBLAS that NumPy's wheels bring along; None with another BLAS."""
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
    """One BLAS thread inside. The setting is the process's, so the last of several threads to leave restores it."""
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

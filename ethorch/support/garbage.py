"""Delay garbage collection. A pass over all objects of torch takes 0.3 s, and imports cause eight passes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def delay_collection() -> Iterator[None]:
    """Disable garbage collection, e.g. during imports or work whose results stay alive.

    At the end, all objects are moved to the oldest generation, so the next collections skip them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # unfreeze() would also release objects frozen by the user
                gc.freeze()
                gc.unfreeze()  # moves all objects to the oldest generation
            gc.enable()


@contextmanager
def reduce_collection() -> Iterator[None]:
    """Collect garbage only after 50,000 new objects."""
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 25)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)

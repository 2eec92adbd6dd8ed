"""Cyclic garbage, collected later: a look through all objects of torch takes Python 0.3 s, and imports cause eight of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Inside, Python looks for no garbage: for imports, and for work of a second whose results live on.

    Afterwards all objects count as old, so that the next collections do not look through those that were made inside.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # else it would end what the user froze
                gc.freeze()
                gc.unfreeze()  # all objects are in the oldest generation now
            gc.enable()


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Inside, Python looks for garbage after 50,000 new objects, where it does after some hundred: for a process of imports."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 25)
    try:
        yield
    finally:
        gc.set_threshold(*before)

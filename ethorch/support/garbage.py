"""Delay garbage collection, because importing torch otherwise causes eight passes over all objects, at 0.3 s each."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Whether the user has frozen objects. Cached, because counting frozen objects is as slow as a pass over them.
_has_frozen_objects = False


@contextmanager
def delay_collection() -> Iterator[None]:
    """Disable garbage collection inside the context, e.g. during imports or work whose results stay alive.

    On exit, all objects move to the oldest generation, so that the next collections skip them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            _age_objects()
            gc.enable()


def _age_objects() -> None:
    """Move all objects to the oldest generation, unless this would unfreeze objects that the user froze."""
    global _has_frozen_objects
    _has_frozen_objects = _has_frozen_objects or gc.get_freeze_count() > 0
    if not _has_frozen_objects:
        gc.freeze()
        gc.unfreeze()


@contextmanager
def reduce_collection() -> Iterator[None]:
    """Collect garbage only once per 50,000 new objects inside the context."""
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 25)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)

"""Progress of long-running work.

Library code opens a ``stage`` and calls the yielded function for each finished step. A listener displays stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

#: Function called for each finished step.
Step = Callable[[], None]


class Listener(Protocol):
    """A listener for stages. Its methods are called from one thread, and the stages are properly nested."""

    def begin(self, name: str, total: int | None) -> None:
        """Begin a stage with ``total`` steps. ``total`` is None if the number is unknown."""

    def step(self, name: str) -> None:
        """Count a finished step of the stage ``name``."""

    def end(self, name: str) -> None:
        """End the stage ``name``, even if it failed."""


class Silence:
    """A Listener that displays nothing and prevents the default display."""

    def begin(self, name: str, total: int | None) -> None:
        """See Listener."""

    def step(self, name: str) -> None:
        """See Listener."""

    def end(self, name: str) -> None:
        """See Listener."""


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def stage(name: str, total: int | None = None) -> Iterator[Step]:
    """Open a stage, e.g. ``stage("calibrate", len(samples))``, and yield a function to call after each step."""
    listener = _LISTENER.get()
    if listener is None:
        yield lambda: None
        return
    listener.begin(name, total)
    try:
        yield lambda: listener.step(name)
    finally:
        listener.end(name)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Report stages started inside the context to ``listener``. None disables reporting."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def has_listener() -> bool:
    return _LISTENER.get() is not None

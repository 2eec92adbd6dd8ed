"""What long work says of itself while it runs: stages, and how far each has come.

Library code opens a ``stage`` and calls it for each step done. Nothing is shown unless somebody listens:
``ethorch.support.progress_bar`` draws the stages on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

#: Called for each step of a stage that is done.
Step = Callable[[], None]


class Listener(Protocol):
    """Somebody who is told of stages. Calls come from one thread, properly nested."""

    def began(self, name: str, total: int | None) -> None:
        """A stage begins; it has ``total`` steps, or nobody knows how many."""

    def stepped(self, name: str) -> None:
        """One step of the stage is done."""

    def ended(self, name: str) -> None:
        """The stage is over, done or broken off."""


class Silence:
    """A Listener that draws nothing, and keeps ``ethorch.support.progress_bar`` from drawing."""

    def began(self, name: str, total: int | None) -> None:
        """See Listener."""

    def stepped(self, name: str) -> None:
        """See Listener."""

    def ended(self, name: str) -> None:
        """See Listener."""


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def stage(name: str, total: int | None = None) -> Iterator[Step]:
    """A stage of long work, e.g. ``stage("calibrate", len(samples))``; call what it gives after each step."""
    listener = _LISTENER.get()
    if listener is None:
        yield lambda: None
        return
    listener.began(name, total)
    try:
        yield lambda: listener.stepped(name)
    finally:
        listener.ended(name)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """``listener`` is told of the stages inside; None: nobody is."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def heard() -> bool:
    """Is somebody told of stages already?"""
    return _LISTENER.get() is not None

"""Stages of long work, drawn on a terminal's stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ethorch.progress import heard, listening


class ProgressBar:
    """A Listener: one line for each stage that runs; it goes when the stage is over."""

    def __init__(self) -> None:
        figures = MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *figures
        self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: list[TaskID] = []

    def __enter__(self) -> ProgressBar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def began(self, name: str, total: int | None) -> None:
        """See Listener."""
        self._tasks.append(self._bars.add_task(name, total=total))

    def stepped(self, name: str) -> None:
        """See Listener."""
        self._bars.advance(self._tasks[-1])

    def ended(self, name: str) -> None:
        """See Listener."""
        self._bars.remove_task(self._tasks.pop())


@contextmanager
def shown(wanted: bool | None = None) -> Iterator[None]:
    """Draw the stages inside on stderr, and take the drawing away at the end.

    Args:
        wanted: None draws where stderr is a terminal and nobody listens yet.
    """
    if wanted is None:
        wanted = sys.stderr.isatty() and not heard()
    if not wanted:
        yield
        return
    with ProgressBar() as bar, listening(bar):
        yield

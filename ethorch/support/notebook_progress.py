"""Display the stages of long-running work in a Jupyter notebook."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any

_SECONDS = 0.2  #: between two updates of the display


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None


class NotebookProgress:
    """A Listener that displays a line per running stage and removes all lines at the end."""

    def __init__(self) -> None:
        self._stages: list[list[Any]] = []  # name, finished steps, total, start time
        self._handle: Any = None
        self._updated = 0.0

    def __enter__(self) -> NotebookProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._stages.clear()
        self._update(always=True)

    def begin(self, name: str, total: int | None) -> None:
        self._stages.append([name, 0, total, time.monotonic()])
        self._update()

    def step(self, name: str) -> None:
        self._stages[-1][1] += 1
        self._update()

    def end(self, name: str) -> None:
        self._stages.pop()

    def _update(self, always: bool = False) -> None:
        now = time.monotonic()
        if not always and now - self._updated < _SECONDS:
            return
        from IPython.display import HTML, display

        self._updated = now
        page: Any = HTML(  # type: ignore[no-untyped-call]
            "".join(map(_line, self._stages))
        )
        if self._handle is not None:
            self._handle.update(page)
        elif self._stages:
            self._handle = display(page, display_id=True)  # type: ignore[no-untyped-call]


def _line(stage: list[Any]) -> str:
    name, count, total, start = stage
    bar = f'<progress value="{count}" max="{total}"></progress> {count}/{total}' if total else "<progress></progress>"
    return f"<div>{escape(name)} {bar} {time.monotonic() - start:.0f} s</div>"

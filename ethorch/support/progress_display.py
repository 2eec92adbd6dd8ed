"""Decide whether the stages of long work are displayed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ethorch.support.notebook_progress import NotebookProgress, in_notebook
from ethorch.support.progress import Listener, heard, listening


@contextmanager
def shown(wanted: bool | None = None) -> Iterator[None]:
    """Display the stages inside the context, on stderr or in the notebook, and remove them at the end.

    Args:
        wanted: Whether to display them. By default, they are displayed on a terminal and in a notebook, unless a listener is
            active.
    """
    notebook = in_notebook()
    if wanted is None:
        wanted = (notebook or sys.stderr.isatty()) and not heard()
    if not wanted:
        yield
        return
    with NotebookProgress() if notebook else _progress_bar() as bar, listening(bar):
        yield


def _progress_bar() -> AbstractContextManager[Listener]:
    from ethorch.support.progress_bar import ProgressBar  # 20 ms of Rich, which only a terminal needs

    return ProgressBar()

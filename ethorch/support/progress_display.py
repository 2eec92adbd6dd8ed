"""Display the stages of long-running work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ethorch.support.notebook_progress import NotebookProgress, in_notebook
from ethorch.support.progress import Listener, has_listener, listening


@contextmanager
def display_progress(enabled: bool | None = None) -> Iterator[None]:
    """Display the stages inside the context on stderr or in the notebook, and remove the display at the end.

    Args:
        enabled: Whether to display the stages. Default: True on a terminal or in a notebook, unless a listener is active.
    """
    notebook = in_notebook()
    if enabled is None:
        enabled = (notebook or sys.stderr.isatty()) and not has_listener()
    if not enabled:
        yield
        return
    with NotebookProgress() if notebook else _progress_bar() as bar, listening(bar):
        yield


def _progress_bar() -> AbstractContextManager[Listener]:
    from ethorch.support.progress_bar import ProgressBar  # importing Rich takes 20 ms

    return ProgressBar()

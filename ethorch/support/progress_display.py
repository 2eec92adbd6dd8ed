"""Decide whether the stages of long work are drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ethorch.support.progress import heard, listening


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
    from ethorch.support.progress_bar import ProgressBar  # 20 ms of Rich, which only a terminal needs

    with ProgressBar() as bar, listening(bar):
        yield

"""Record the programs of a test. This module does not import PyTorch, because pytest always loads the plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ethorch.program.program import Program  # imports PyTorch, 2 s

_running: ContextVar[list[Program] | None] = ContextVar("ethorch_programs", default=None)


def record(program: Program) -> Program:
    """Add a program to pytest's summary and to ``--ethorch-report``, and return it. If no test is running, only return it.

    ``assert_runs_on_npu`` and the fixture ``ethosu_compile`` record programs automatically.
    """
    programs = _running.get()
    if programs is not None and not any(recorded is program for recorded in programs):
        programs.append(program)
    return program


@contextmanager
def recording() -> Iterator[list[Program]]:
    """Record programs inside the context, and yield the list of recorded programs."""
    programs: list[Program] = []
    token = _running.set(programs)
    try:
        yield programs
    finally:
        _running.reset(token)

"""Programs that a test has made, for the pytest plugin; light, since pytest loads it before anybody asks for PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ethorch.program.program import Program  # 2 seconds of PyTorch

_running: ContextVar[list[Program] | None] = ContextVar("ethorch_programs", default=None)


def record(program: Program) -> Program:
    """Name a program in the summary that ``pytest`` prints, and save its figures where ``--ethorch-report`` says.

    ``assert_runs_on_npu`` and the fixture ``ethosu_compile`` do so by themselves. Outside of a test nothing happens.

    Returns:
        the program.
    """
    programs = _running.get()
    if programs is not None and not any(known is program for known in programs):
        programs.append(program)
    return program


@contextmanager
def recording() -> Iterator[list[Program]]:
    """Inside, what is recorded comes into this list."""
    programs: list[Program] = []
    token = _running.set(programs)
    try:
        yield programs
    finally:
        _running.reset(token)

"""How a subcommand answers: plain data for ``--json``, something to read for everybody else, and an exit status."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


class Status(IntEnum):
    """Exit status of every subcommand. ``NO``: it is done, and the answer is no, such as a budget that does not hold."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO = 3
    INTERRUPTED = 130


@dataclass(frozen=True)
class Answer:
    """What a subcommand found.

    Attributes:
        data: for ``--json``; keys are documented in docs/json.md and stay.
        text: makes what a reader gets: lines, or tables of Rich.
        status: of the process.
    """

    data: Any
    text: Callable[[], RenderableType]
    status: Status = Status.DONE


def give(answer: Answer, as_json: bool) -> None:
    """Print the answer on standard output. Somebody who has read enough (``| head``) is no error."""
    try:
        if as_json:
            print(json.dumps(answer.data, indent=2), flush=True)
        else:
            _print(answer.text())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stacked(*parts: RenderableType) -> RenderableType:
    """Return parts one below the other."""
    from rich.console import Group

    return Group(*parts)


def write_output(path: Path, text: str) -> None:
    """Write a text to a file; to standard output if the path is ``-``."""
    if str(path) == "-":
        print(text, end="", flush=True)
        return
    from ethorch.formats.files import write_whole

    write_whole(path, text.encode())


def _print(text: RenderableType) -> None:
    """On a terminal as wide as it is, in colour; else as lines that are not cut."""
    if isinstance(text, str):
        print(text, flush=True)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False, markup=False).print(text)
    else:
        from ethorch.support.rendering import as_text

        print(as_text(text), flush=True)

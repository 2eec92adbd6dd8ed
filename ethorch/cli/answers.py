"""Results of subcommands: data for ``--json``, text, and an exit status."""

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
    """The exit statuses of subcommands. ``NO`` is success with a negative result."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO = 3
    INTERRUPTED = 130


@dataclass(frozen=True)
class Answer:
    """The result of a subcommand.

    Attributes:
        data: JSON-compatible data for ``--json``, documented in docs/json.md.
        text: Function that returns the text or Rich tables to print.
        raw: Contents of the output file ``-``, printed instead.
    """

    data: Any
    text: Callable[[], RenderableType]
    status: Status = Status.DONE
    raw: bytes | None = None


def give(answer: Answer, as_json: bool) -> None:
    """Print the result to standard output, ignoring a closed pipe (``| head``)."""
    try:
        if answer.raw is not None:
            sys.stdout.flush()
            sys.stdout.buffer.write(answer.raw)
            sys.stdout.buffer.flush()
        elif as_json:
            print(json.dumps(answer.data, indent=2), flush=True)
        else:
            _print(answer.text())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stack(*parts: RenderableType) -> RenderableType:
    from rich.console import Group

    return Group(*parts)


def write_output(path: Path, text: str) -> bytes | None:
    """Write text to a file, or return ``Answer.raw`` if the path is ``-``."""
    if str(path) == "-":
        return text.encode()
    from ethorch.formats.files import write_whole

    write_whole(path, text.encode())
    return None


def _print(text: RenderableType) -> None:
    if isinstance(text, str):
        print(text, flush=True)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False, markup=False).print(text)
    else:
        from ethorch.support.rendering import as_text

        print(as_text(text), flush=True)

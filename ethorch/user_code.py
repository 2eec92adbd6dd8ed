"""What users wrote: whether it is there, and which line of theirs an error comes from. Without PyTorch's seconds."""

from __future__ import annotations

import ast
import linecache
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from ethorch.errors import EthorchError, UserCodeError

#: Folders whose lines are not the user's: ethorch, the standard library, installed packages.
_LIBRARIES = tuple(
    f"{Path(folder).resolve()}/"
    for folder in (
        str(Path(__file__).parent),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def find(reference: str) -> tuple[Path, str]:
    """(file, name in it) of ``FILE.py:NAME``, (file, "") of ``FILE.pt2``.

    Raises:
        EthorchError: it is written otherwise, or there is no such file.
    """
    path, colon, name = reference.rpartition(":")
    if colon and path.endswith(".py"):
        if not Path(path).is_file():
            raise EthorchError(f"there is no Python file {path}.")
        return Path(path), name
    if reference.endswith(".pt2"):
        if not Path(reference).is_file():
            raise EthorchError(f"there is no file {reference}.")
        return Path(reference), ""
    hint = ""
    if reference.endswith(".py") and Path(reference).is_file():
        hint = f" Write {reference}:NAME; it has: {', '.join(_names(Path(reference))) or 'no function'}."
    raise EthorchError(f"{reference!r} is neither FILE.py:factory nor FILE.pt2.{hint}")


def _names(path: Path) -> list[str]:
    """Functions and variables of a file, without running it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Any error of the user's code inside becomes a UserCodeError: ``what``, the line it comes from, and its first sentence."""
    try:
        yield
    except EthorchError:
        raise
    except Exception as error:
        raise UserCodeError(f"{what}{at(error)}: {first_sentence(error)}") from error


def at(error: BaseException) -> str:
    """`` at net.py:12 (`return self.head(x)`)``: the innermost line of the user's that the error went through, or nothing."""
    found: tuple[str, int] | None = None
    seen: BaseException | None = error
    while seen is not None and found is None:
        found = _innermost(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    if found is None:
        if isinstance(error, SyntaxError) and error.filename:
            return f" at {error.filename}:{error.lineno}"
        return ""
    path, number = found
    line = linecache.getline(path, number).strip()
    return f" at {path}:{number}" + (f" (`{line}`)" if line else "")


def _innermost(trace: TracebackType | None) -> tuple[str, int] | None:
    found = None
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith("<") and not str(Path(path).resolve()).startswith(_LIBRARIES):
            found = path, trace.tb_lineno
        trace = trace.tb_next
    return found


def raised_in(error: BaseException, folder: Path) -> bool:
    """Was it a file in this folder that raised the error?"""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and Path(trace.tb_frame.f_code.co_filename).resolve().is_relative_to(folder.resolve())


def first_sentence(error: BaseException) -> str:
    """``ValueError: what it says first``, ending in a full stop."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines and lines[0].strip() else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text.rstrip(':;,')}."

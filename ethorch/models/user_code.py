"""Resolve references to user models, and find the source lines of user errors. This module does not import PyTorch."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ethorch.support.errors import EthorchError, SpecError, UserCodeError
from ethorch.support.wording import did_you_mean

#: Folders of library code: ethorch, the standard library, installed packages.
_LIBRARIES = tuple(
    f"{Path(folder).resolve()}/"
    for folder in (
        str(Path(__file__).parent.parent),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


@dataclass(frozen=True)
class Reference:
    """A reference to a user's model.

    Attributes:
        kind: ``file``, ``module`` (importable), ``exported`` (a .pt2), or a name in ZOOS.
        place: Path of the file, dotted name of the module, or "" for a zoo.
        name: Name of the function or variable, or model name in the zoo.
    """

    kind: str
    place: str
    name: str = ""


#: Prefixes of model zoos. See ``ethorch.models.zoos``.
ZOOS = ("torchvision", "timm", "hf", "executorch")
#: Forms of a model name, for messages and help.
FORMS = "FILE.py:NAME, package.module:NAME, FILE.pt2, torchvision:NAME, timm:NAME, hf:FOLDER or executorch:NAME"
#: Suffixes of weights files, and of models of other frameworks.
_WEIGHTS = frozenset({".pt", ".pth", ".bin", ".ckpt", ".safetensors"})
_OTHER_FORMATS = {
    ".onnx": "ONNX", ".tflite": "TensorFlow Lite", ".pb": "TensorFlow", ".h5": "Keras", ".keras": "Keras", ".mlmodel": "Core ML",
}  # fmt: skip
#: Model variable of files for ExecuTorch's Arm scripts.
ARM_MODEL = "ModelUnderTest"


def find(reference: str) -> Reference:
    """Resolve a model name without importing the model.

    Raises:
        SpecError: The name is malformed, or the file or module does not exist.
    """
    place, colon, name = reference.rpartition(":")
    zoo, _, rest = reference.partition(":")
    if zoo in ZOOS and rest:
        if zoo == "hf" and not Path(rest).is_dir():
            raise SpecError(f"folder {rest} does not exist. Use `hf:FOLDER` with a folder written by save_pretrained.")
        return Reference(zoo, "", rest)
    if colon and place.endswith(".py"):
        if not Path(place).is_file():
            raise SpecError(f"Python file {place} does not exist.{did_you_mean(Path(place).name, _list_similar_files(place))}")
        if (names := names_in(Path(place))) and not _may_define(Path(place), name):
            raise SpecError(f"{place} has no {name!r}.{did_you_mean(name, names)} Available names: {', '.join(names)}.")
        return Reference("file", place, name)
    if reference.endswith(".pt2"):
        if not Path(reference).is_file():
            raise SpecError(f"file {reference} does not exist.{did_you_mean(Path(reference).name, _list_similar_files(reference))}")
        return Reference("exported", reference)
    hint = ""
    if reference.endswith(".py") and Path(reference).is_file():
        names = names_in(Path(reference))
        if ARM_MODEL in names:
            return Reference("file", reference, ARM_MODEL)
        hint = f" Use {reference}:NAME with one of these names: {', '.join(names) or 'none'}."
    elif colon and name.isidentifier() and all(part.isidentifier() for part in place.split(".")):
        if _is_module(place):
            return Reference("module", place, name)
        hint = f" Python module {place} does not exist."
    elif not Path(reference).exists():
        hint = f" File or folder {reference} does not exist."
    suffix = Path(reference).suffix.lower()
    if suffix in _OTHER_FORMATS:
        raise SpecError(f"{reference!r}: expected a PyTorch model, got {_OTHER_FORMATS[suffix]}. Use {FORMS}.")
    if suffix in _WEIGHTS:
        raise SpecError(f"expected a model, got the weights file {reference!r}. Use FILE.py:NAME --weights {reference}.")
    raise SpecError(f"expected a model ({FORMS}), got {reference!r}.{hint}")


def _is_module(name: str) -> bool:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.remove(here)


def _list_similar_files(place: str) -> list[str]:
    path = Path(place)
    return [file.name for file in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []


def _parse_file(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def names_in(path: Path) -> list[str]:
    """Return the public names of functions and variables in a Python file, without running the file."""
    tree = _parse_file(path)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets = [part for target in assigned for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def _may_define(path: Path, name: str) -> bool:
    for node in ast.walk(_parse_file(path)):
        names = [alias.asname or alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        names += [getattr(node, "name", None) or getattr(node, "id", None) or ""]
        names += [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
        if name in names or "*" in names or "globals" in names:
            return True
    return False


@contextmanager
def convert_user_errors(message: str) -> Iterator[None]:
    """Convert errors in user code to UserCodeError with ``message`` and the source line."""
    try:
        yield
    except EthorchError:
        raise
    except Exception as error:
        raise UserCodeError(f"{message}{at(error)}: {first_sentence(error)}") from error


def at(error: BaseException) -> str:
    """Return `` at net.py:12 (`return self.head(x)`)`` for the innermost user line of the traceback, or ""."""
    location: tuple[str, int] | None = None
    cause: BaseException | None = error
    while cause is not None and location is None:
        location = _find_innermost_line(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    if location is None:
        if isinstance(error, SyntaxError) and error.filename:
            return f" at {error.filename}:{error.lineno}"
        return ""
    path, number = location
    line = linecache.getline(path, number).strip()
    return f" at {path}:{number}" + (f" (`{line}`)" if line else "")


def _find_innermost_line(trace: TracebackType | None) -> tuple[str, int] | None:
    location = None
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith("<") and not str(Path(path).resolve()).startswith(_LIBRARIES):
            location = path, trace.tb_lineno
        trace = trace.tb_next
    return location


def is_raised_in(error: BaseException, folder: Path) -> bool:
    """Return True if the error was raised in a file in ``folder``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and Path(trace.tb_frame.f_code.co_filename).resolve().is_relative_to(folder.resolve())


def first_sentence(error: BaseException) -> str:
    """Return the type and first line of an error, with a final period, e.g. ``ValueError: first line.``."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines and lines[0].strip() else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text.rstrip(':;,')}."

"""What users wrote: whether it is there, and which line of theirs an error comes from. Without PyTorch's seconds."""

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

#: Folders whose lines are not the user's: ethorch, the standard library, installed packages.
_LIBRARIES = tuple(
    f"{Path(folder).resolve()}/"
    for folder in (
        str(Path(__file__).parent.parent),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


@dataclass(frozen=True)
class Reference:
    """Where a user's model is.

    Attributes:
        kind: ``file`` (a Python file), ``module`` (an installed one), ``exported`` (a .pt2), or one of ZOOS.
        place: the file, or the dotted name of the module, or nothing.
        name: the function or variable in it, or the model's name in the zoo.
    """

    kind: str
    place: str
    name: str = ""


#: Prefixes that name public libraries of models; ``ethorch.models.zoos`` loads them.
ZOOS = ("torchvision", "timm", "hf", "executorch")
#: What a model's name may look like, for messages and for help.
FORMS = "FILE.py:NAME, package.module:NAME, FILE.pt2, torchvision:NAME, timm:NAME, hf:FOLDER or executorch:NAME"
#: Suffixes of files of weights, and of models that are not PyTorch's.
_WEIGHTS = frozenset({".pt", ".pth", ".bin", ".ckpt", ".safetensors"})
_OTHER_FORMATS = {
    ".onnx": "ONNX", ".tflite": "TensorFlow Lite", ".pb": "TensorFlow", ".h5": "Keras", ".keras": "Keras", ".mlmodel": "Core ML",
}  # fmt: skip
#: The variable of a file that ExecuTorch's Arm scripts compile.
ARM_MODEL = "ModelUnderTest"


def find(reference: str) -> Reference:
    """Where the model that a user names is, without importing it.

    Raises:
        SpecError: it is written otherwise, or there is no such file or module.
    """
    place, colon, name = reference.rpartition(":")
    zoo, _, rest = reference.partition(":")
    if zoo in ZOOS and rest:
        if zoo == "hf" and not Path(rest).is_dir():
            raise SpecError(f"there is no folder {rest}; hf: takes one that save_pretrained wrote.")
        return Reference(zoo, "", rest)
    if colon and place.endswith(".py"):
        if not Path(place).is_file():
            raise SpecError(f"there is no Python file {place}.{did_you_mean(Path(place).name, _beside(place))}")
        if (names := names_in(Path(place))) and not _may_have(Path(place), name):
            raise SpecError(f"{place} has no {name!r}.{did_you_mean(name, names)} It has: {', '.join(names)}.")
        return Reference("file", place, name)
    if reference.endswith(".pt2"):
        if not Path(reference).is_file():
            raise SpecError(f"there is no file {reference}.{did_you_mean(Path(reference).name, _beside(reference))}")
        return Reference("exported", reference)
    hint = ""
    if reference.endswith(".py") and Path(reference).is_file():
        names = names_in(Path(reference))
        if ARM_MODEL in names:
            return Reference("file", reference, ARM_MODEL)
        hint = f" Write {reference}:NAME; it has: {', '.join(names) or 'no function'}."
    elif colon and name.isidentifier() and all(part.isidentifier() for part in place.split(".")):
        if _is_module(place):
            return Reference("module", place, name)
        hint = f" There is no Python module {place}."
    elif not Path(reference).exists():
        hint = f" There is no file or folder {reference}."
    suffix = Path(reference).suffix.lower()
    if suffix in _OTHER_FORMATS:
        raise SpecError(f"{reference!r} is a model of {_OTHER_FORMATS[suffix]}; ethorch compiles PyTorch modules. Write {FORMS}.")
    if suffix in _WEIGHTS:
        raise SpecError(f"{reference!r} has weights without a module. Write FILE.py:NAME --weights {reference}.")
    raise SpecError(f"{reference!r} is no model: write {FORMS}.{hint}")


def _is_module(name: str) -> bool:
    """Is there a module of that dotted name, here or installed? Its packages are imported, it is not."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.remove(here)


def _beside(place: str) -> list[str]:
    """Files with the same ending in the folder where one was looked for."""
    path = Path(place)
    return [other.name for other in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []


def _parsed(path: Path) -> ast.Module:
    """What a file says, without running it; nothing where it is no Python, which running it will say."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def names_in(path: Path) -> list[str]:
    """Functions and variables of a Python file, without running it; nothing of one that cannot be read."""
    tree = _parsed(path)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    targets = [part for target in assigned for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def _may_have(path: Path, name: str) -> bool:
    """May running the file bring a variable of this name? Where its lines do not mention it, and import no other's, it cannot."""
    for node in ast.walk(_parsed(path)):
        names = [alias.asname or alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        names += [getattr(node, "name", None) or getattr(node, "id", None) or ""]
        names += [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
        if name in names or "*" in names or "globals" in names:
            return True
    return False


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

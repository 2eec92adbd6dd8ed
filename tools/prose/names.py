"""Find names without a meaning."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.prose.texts import ROOT, python_files

#: Words that describe neither a value nor an action.
EMPTY = frozenset(
    [
        "found",
        "made",
        "one",
        "given",
        "known",
        "own",
        "wanted",
        "other",
        "kept",
        "whole",
        "taken",
        "said",
        "held",
        "done",
        "shown",
        "placed",
        "there",
        "drawn",
        "built",
        "fitted",
        "stacked",
        "picked",
        "ours",
        "told",
    ]
)
#: Generic nouns -> times that they were variables, parameters and reads at ebe7a6c, counted by ``generic_counts``.
GENERIC = {"result": 450, "value": 2479, "item": 127, "data": 554, "info": 69, "entry": 194, "obj": 0}
_IRREGULAR = frozenset(
    [
        "made",
        "given",
        "known",
        "kept",
        "taken",
        "said",
        "held",
        "done",
        "shown",
        "drawn",
        "built",
        "told",
        "found",
        "written",
        "chosen",
        "spoken",
        "seen",
        "left",
        "sent",
        "met",
        "lost",
        "bound",
        "begun",
        "broken",
        "driven",
        "frozen",
        "grown",
        "hidden",
        "spent",
    ]
)
_VERBS_IN_ED = frozenset(["need", "feed", "embed", "speed", "seed", "shed", "red", "bed", "exceed", "proceed", "succeed", "fixed"])


@dataclass(frozen=True)
class Name:
    """A name in the sources.

    Attributes:
        file: Path relative to the root of the repository.
        line: Line from 1.
        kind: ``variable``, ``parameter``, ``function`` or ``property``.
        name: The identifier.
        is_public: Whether neither the name nor that of its function or class starts with an underscore.
    """

    file: str
    line: int
    kind: str
    name: str
    is_public: bool

    @property
    def is_empty(self) -> bool:
        """True if the name has no meaning."""
        return self.name.strip("_") in EMPTY

    @property
    def is_participle(self) -> bool:
        """True if the first word is a past participle."""
        first = self.name.strip("_").split("_")[0]
        return (first.endswith("ed") and first not in _VERBS_IN_ED) or first in _IRREGULAR


def names(folder: str = "ethorch") -> list[Name]:
    """Return the names that functions, parameters and assignments define."""
    return [name for path in python_files(folder) for name in _names_of(path)]


def _names_of(path: Path) -> Iterator[Name]:
    file = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Name(file, node.lineno, "variable", node.id, not node.id.startswith("_"))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_public = not node.name.startswith("_")
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            is_property = any("property" in decorator or decorator.endswith(".setter") for decorator in decorators)
            yield Name(file, node.lineno, "property" if is_property else "function", node.name, is_public)
            if node.name.startswith("__") and node.name != "__init__":
                continue  # Python names their parameters
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                yield Name(file, argument.lineno, "parameter", argument.arg, is_public)


def generic_counts(folder: str = "ethorch", root: Path = ROOT) -> Counter[str]:
    """Return how often each generic noun is assigned, read, or used as a parameter."""
    counts: Counter[str] = Counter()
    for path in sorted((root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            if name in GENERIC:
                counts[name] += 1
    return counts

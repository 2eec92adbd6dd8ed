"""Extract docstrings, messages, comments and pages with their locations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
#: Pages that ``python -m tools.docs`` and the scripts of ``bench/`` and ``tests/helpers`` write.
GENERATED = (
    "docs/arm-tests.md",
    "docs/boards.md",
    "docs/cpu-kernels.md",
    "docs/exclusion-checks.md",
    "docs/npu-coverage.md",
    "docs/ops.md",
    "docs/reference/cli.md",
    "docs/reference/messages.md",
    "docs/targets.md",
    "docs/vela-bugs.md",
    "docs/zoo.md",
)
#: Calls whose strings a user reads: constructors of messages, and options of commands.
_MESSAGES = re.compile(r"^(\w*Error|\w*Fault|Reason|Refusal|Unsupported|Option|Argument|refuse|_refuse|warning|info|warn)$")
_CODE = re.compile(r"``.*?``|`[^`]*`|:\w+:`[^`]*`", re.DOTALL)
_LINK = re.compile(r"\]\([^)]*\)|https?://\S+|<[^>\s][^>]*>")
_FENCE = re.compile(r"^\s*(```|~~~)")


@dataclass(frozen=True)
class Text:
    """One text.

    Attributes:
        file: Path relative to the root of the repository.
        line: Line of the first word, starting at 1.
        kind: ``module``, ``class``, ``function`` or ``property`` (docstrings), ``message``, ``comment``, or ``page``.
        name: Qualified name of the documented object, or a heading.
        text: The prose, including code.
    """

    file: str
    line: int
    kind: str
    name: str
    text: str

    @property
    def is_docstring(self) -> bool:
        return self.kind in ("module", "class", "function", "property")

    @property
    def words(self) -> int:
        """The number of words, separated by white space."""
        return len(self.text.split())


def without_code(text: str) -> str:
    """Return the text without code and link targets. A piece of code is replaced by one word or removed."""
    return _LINK.sub("]", _CODE.sub("X", text))


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below the folders, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def pages() -> list[Path]:
    """Return the hand-written Markdown files, sorted."""
    files = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    return sorted(path for path in files if path.relative_to(ROOT).as_posix() not in GENERATED)


def texts_of_source(path: Path) -> Iterator[Text]:
    """Yield the docstrings, the messages and the comments of a Python file."""
    source = path.read_text(encoding="utf-8")
    file = path.relative_to(ROOT).as_posix()
    tree = ast.parse(source)
    yield from _docstrings(tree, file, "")
    yield from _messages(tree, file)
    for number, line in enumerate(source.splitlines(), 1):
        if match := re.match(r"^\s*#:? (?!type:|noqa|fmt:|ruff:|pragma)(.*\w.*)$", line):
            yield Text(file, number, "comment", "", match[1])


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, file: str, name: str) -> Iterator[Text]:
    text = ast.get_docstring(node)
    if text and isinstance(node.body[0], ast.Expr):
        yield Text(file, node.body[0].lineno, _kind(node), name, text)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child, file, f"{name}.{child.name}".strip("."))


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
    return "property" if any("property" in one for one in decorators) else "function"


def _messages(tree: ast.Module, file: str) -> Iterator[Text]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if not _MESSAGES.match(called):
            continue
        values = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in ("help", "remedy", "text"))]
        for value in values:
            if len((text := _literal(value)).split()) > 1:
                yield Text(file, value.lineno, "message", called, text)


def _literal(node: ast.expr) -> str:
    """Return the text of a string or f-string, with X in place of values, or an empty string for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return ""


def texts_of_page(path: Path) -> Iterator[Text]:
    """Yield the paragraphs, list entries and table rows of a Markdown file, without code blocks."""
    file = path.relative_to(ROOT).as_posix()
    in_code, heading = False, ""
    lines: list[str] = []
    start = 0
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        if _FENCE.match(line):
            in_code = not in_code
        starts = not line.strip() or _FENCE.match(line) or re.match(r"^\s*([-*+]|\d+\.|\||#|>|!!!)", line)
        if lines and (starts or in_code):
            yield Text(file, start, "page", heading, " ".join(lines))
            lines = []
        if in_code or not line.strip() or _FENCE.match(line):
            continue
        if line.startswith("#"):
            heading = line.strip("# ")
        if not lines:
            start = number
        lines.append(line.strip())


def code_words(path: Path) -> int:
    """Return the number of words within the code blocks of a Markdown file."""
    count, in_code = 0, False
    for line in path.read_text(encoding="utf-8").splitlines():
        if _FENCE.match(line):
            in_code = not in_code
        elif in_code:
            count += len(line.split())
    return count

"""Where ethorch's modules import each other: at the top of the file, or a comment says which seconds another place saves.

``lint-imports`` checks who imports whom; pyproject.toml has its contracts.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parent.parent
#: The command line and the public face are lazy as a whole: their docstrings say so.
LAZY = ("ethorch/cli/", "ethorch/__init__.py")
SECONDS = re.compile(r"#.*\d (m?s|seconds?)\b")


def hidden_imports(source: str) -> list[str]:
    """``line: statement`` of each import of an ethorch module inside a function, a class or an ``if`` without such a comment.

    The comment stands on the statement's first line or right above it.
    """
    tree, lines = ast.parse(source), source.splitlines()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or node in tree.body:
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if not any(name.split(".")[0] == "ethorch" for name in names):
            continue
        above = lines[node.lineno - 2].strip()
        if not SECONDS.search(lines[node.lineno - 1]) and not (above.startswith("#") and SECONDS.search(above)):
            found.append(f"{node.lineno}: {lines[node.lineno - 1].strip()}")
    return found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import torch\nfrom ethorch import npu\n", 0),
        ("def f():\n    import torch\n", 0),
        ("def f():\n    from ethorch import npu\n", 1),
        ("if TYPE_CHECKING:\n    from ethorch.lower.ops.spec import OpSpec\n", 1),
        ("def f():\n    from ethorch import npu  # saves 0.3 s of `ethorch --help`\n", 0),
        ("def f():\n    # 2 seconds of torch, which only a quantized model needs\n    from ethorch import npu\n", 0),
        ("def f():\n    from ethorch import npu  # a circle otherwise\n", 1),
    ],
)
def test_what_counts_as_hidden(source: str, count: int) -> None:
    assert len(hidden_imports(source)) == count


def test_no_import_is_hidden_without_a_reason() -> None:
    found = []
    for path in sorted((ROOT / "ethorch").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if not name.startswith(LAZY):
            found += [f"{name}:{line}" for line in hidden_imports(path.read_text())]
    assert not found, "\n".join(found)


def test_imports_in_functions_stand_in_modules_that_the_documentation_names() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("## Start-up")[2].partition("\n## ")[0]
    named = {f"ethorch/{name}" for name in re.findall(r"`([\w/]+\.py)`", section)}
    found = set()
    for path in (ROOT / "ethorch").rglob("*.py"):
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        imports = [node.module or "" for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]
        if any(name.split(".")[0] == "ethorch" for name in imports):
            found.add(str(path.relative_to(ROOT)))
    assert {name for name in found if not name.startswith(LAZY)} <= named

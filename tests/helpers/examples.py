"""Objects of the package used by tested examples: pages, README, scripts and notebooks."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ethorch
from ethorch.testing import pytest_plugin

ROOT = Path(__file__).resolve().parent.parent.parent
_BLOCK = re.compile(r"^```python.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^::: (?P<path>[\w.]+)\n(?:    options:\n      members: \[(?P<members>[^\]]*)\])?", re.MULTILINE)


def sources() -> Iterator[str]:
    """Return the Python code of every example that a test runs."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield "\n".join(_BLOCK.findall(page.read_text()))
    for script in sorted((ROOT / "examples").glob("*.py")):
        yield script.read_text()
    for notebook in sorted((ROOT / "examples").rglob("*.ipynb")):
        cells = [cell["source"] for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        yield "\n".join(line for cell in cells for line in cell if not line.startswith(("%", "!")))


def used() -> set[int]:
    """Return the identities of ethorch's objects that examples use."""
    found: set[int] = set()
    for source in sources():
        tree, known = ast.parse(source), dict[str, Any]()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ethorch":
                for alias in node.names:
                    known[alias.asname or alias.name] = _found(f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.partition(".")[0] == "ethorch":
                        known[alias.asname or "ethorch"] = _found(alias.name) if alias.asname else ethorch
        for node in ast.walk(tree):
            value = getattr(pytest_plugin, node.arg, None) if isinstance(node, ast.arg) else _value(node, known)
            if value is not None:
                found.add(id(value))
    return found


def _value(node: ast.AST, known: dict[str, Any]) -> Any:
    """Return the value of a name or dotted name if it belongs to the package."""
    if isinstance(node, ast.Name):
        return known.get(node.id) if isinstance(node.ctx, ast.Load) else None
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, known)
        return getattr(owner, node.attr, None) if isinstance(owner, (ModuleType, type)) else None
    return None


def _found(path: str) -> Any:
    """Return the object of a dotted path."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return importlib.import_module(path)


def public() -> dict[str, Any]:
    """Return the objects of ``ethorch.__all__`` and of the API reference by name."""
    found = {f"ethorch.{name}": getattr(ethorch, name) for name in ethorch.__all__}
    for entry in _ENTRY.finditer((ROOT / "docs" / "reference" / "api.md").read_text()):
        value = _found(entry["path"])
        if not isinstance(value, ModuleType):
            found[entry["path"]] = value
            continue
        members = [name.strip() for name in entry["members"].split(",")] if entry["members"] else _own(value)
        found.update((f"{entry['path']}.{name}", getattr(value, name)) for name in members)
    by_identity = {id(value): (name, value) for name, value in reversed(found.items())}
    return dict(sorted(by_identity.values(), key=lambda pair: pair[0]))


def _own(module: ModuleType) -> list[str]:
    """Return the names that mkdocstrings shows of a module: its own definitions without underscore."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and inspect.getdoc(value)
    ]


def shown(values: dict[str, Any], used: set[int]) -> set[str]:
    """Return the names that examples use, classes of results and attributes of used objects, and the bases of both.

    An example that catches an error also catches derived errors.
    """
    found = {name for name, value in values.items() if id(value) in used}
    waiting = list(found)
    while waiting:
        known = values[waiting.pop()]
        given = " ".join(_annotations(known))
        for name, value in values.items():
            if name in found or not isinstance(value, type):
                continue
            base = isinstance(known, type) and value in known.__mro__
            derived = isinstance(known, type) and known in value.__mro__ and issubclass(known, Exception)
            if base or derived or re.search(rf"\b{value.__name__}\b", given):
                found.add(name)
                waiting.append(name)
    return found


def _annotations(value: Any) -> Iterator[str]:
    """Return the return type of a function; for a class, the types of its methods, properties and fields."""
    if inspect.isfunction(value):
        yield str(value.__annotations__.get("return", ""))
    elif isinstance(value, type):
        for base in value.__mro__:
            yield from map(str, vars(base).get("__annotations__", {}).values())
            for member in vars(base).values():
                member = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
                if inspect.isfunction(member):
                    yield str(member.__annotations__.get("return", ""))

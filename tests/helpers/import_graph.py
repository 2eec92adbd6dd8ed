"""The imports between the modules of ethorch, read from their sources.

Counted are imports at module level, in functions, under TYPE_CHECKING, by ``importlib`` with a literal name, and those of the stub
that ``ethorch.__getattr__`` loads names by.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent / "ethorch"
Graph = dict[str, set[str]]


def module_names(root: Path = ROOT) -> dict[str, Path]:
    """Return each module's dotted name with its file."""
    names = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def module_imports(root: Path = ROOT) -> Graph:
    """Return the modules that each module imports. A package's own ``__init__`` is a module of the package's name."""
    names = module_names(root)
    graph: Graph = {name: set() for name in names}
    for name, path in names.items():
        is_package = path.name == "__init__.py"
        for imported in _imports(path.read_text(encoding="utf-8"), name, is_package):
            graph[name].add(_module(imported, names))
        stub = path.with_suffix(".pyi")
        if stub.exists():
            for imported in _imports(stub.read_text(encoding="utf-8"), name, is_package):
                graph[name].add(_module(imported, names))
        graph[name].discard(name)
        graph[name].discard("")
    return graph


def _imports(source: str, name: str, is_package: bool) -> Iterator[str]:
    """Yield the dotted names that a source imports from its own root package."""
    package = name if is_package else name.rpartition(".")[0]
    root = name.partition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == root)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            if base.split(".")[0] == root:
                yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and str(node.args[0].value).split(".")[0] == root:
                yield str(node.args[0].value)


def _module(name: str, names: Mapping[str, Path]) -> str:
    """Return the longest prefix of a dotted name that is a module."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name


def packages(graph: Graph) -> Graph:
    """Return the imports between top-level packages, or loose modules; the root's own are left out."""
    found: Graph = {}
    for name, imported in graph.items():
        if "." in name:
            source = name.split(".")[1]
            targets = {other.split(".")[1] for other in imported if "." in other}
            found.setdefault(source, set()).update(targets - {source})
    return found


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one module, sorted (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    for start in sorted(graph):
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            name, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in stack:
                    low[name] = min(low[name], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    place = stack.index(name)
                    component = stack[place:]
                    del stack[place:]
                    if len(component) > 1:
                        found.append(sorted(component))
    return sorted(found)

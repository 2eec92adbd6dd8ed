"""Imports between the modules of a package, including those that Grimp does not find.

Grimp reads imports at module level, in functions and under TYPE_CHECKING. This module adds ``importlib.import_module`` with a
literal name, and the stub from which ``ethorch.__getattr__`` loads names.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx


def module_imports(package: str = "ethorch") -> networkx.DiGraph:
    """Return the graph of a package's modules, with an edge to each module that one imports."""
    found = grimp.build_graph(package, cache_dir=None)
    graph = networkx.DiGraph()
    graph.add_nodes_from(found.modules)
    for name in found.modules:
        graph.add_edges_from((name, other) for other in found.find_modules_directly_imported_by(name))
    for name in found.modules:
        graph.add_edges_from((name, other) for other in _unseen(name) if other in graph and other != name)
    return graph


def _unseen(name: str) -> Iterator[str]:
    """Yield the dotted names that a module imports by ``importlib``, or its stub by a relative import."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)
    stub = path.with_suffix(".pyi")
    for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8") if stub.exists() else "")):
        if isinstance(node, ast.ImportFrom):
            base = f"{name}.{node.module}" if node.module else name
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def packages(graph: networkx.DiGraph) -> networkx.DiGraph:
    """Return the imports between top-level packages or modules, except those of the root."""
    found = networkx.DiGraph()
    found.add_nodes_from(name.split(".")[1] for name in graph if "." in name)
    pairs = ((name.split(".")[1], other.split(".")[1]) for name, other in graph.edges if "." in name and "." in other)
    found.add_edges_from((own, other) for own, other in pairs if own != other)
    return found


def cycles(graph: networkx.DiGraph) -> list[list[str]]:
    """Return the modules that import each other, sorted."""
    return sorted(sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1)

"""The layout of the package: layers, no circles, and public names that no module hides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import networkx
import pytest

from ethorch.support.text_files import parse_toml
from tests.helpers.import_graph import cycles, module_imports, packages

pytestmark = pytest.mark.core
ROOT = Path(__file__).parent.parent
MOST_PACKAGES, MOST_EDGES = 20, 130


@pytest.fixture(scope="module")
def graph() -> networkx.DiGraph:
    return module_imports()


def layers() -> list[list[str]]:
    """Return the packages from top to bottom, as import-linter's contract has them."""
    contracts = parse_toml((ROOT / "pyproject.toml").read_text(), "pyproject.toml")["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract.get("containers") == ["ethorch"])
    return [row.split(" | ") for row in rows]


def test_packages_and_edges_are_few(graph: networkx.DiGraph) -> None:
    found = packages(graph)
    assert len(found) <= MOST_PACKAGES and found.size() <= MOST_EDGES, f"{len(found)} packages, {found.size()} edges between them"


def test_there_are_no_loose_modules() -> None:
    files = {path.stem for path in (ROOT / "ethorch").glob("*.py")}
    assert files == {"__init__"}


def test_no_package_imports_one_above_or_beside_it(graph: networkx.DiGraph) -> None:
    level = {name: number for number, row in enumerate(layers()) for name in row}
    upward = [
        f"{name} imports {other}"
        for name, other in graph.edges
        if "." in name and "." in other
        for own, its in [(name.split(".")[1], other.split(".")[1])]
        if own != its and level[its] <= level[own]
    ]
    assert not upward, "\n".join(upward)


def test_no_modules_import_each_other_in_a_circle(graph: networkx.DiGraph) -> None:
    found = cycles(graph)
    assert not found, "\n".join(" <-> ".join(circle) for circle in found)


def test_circles_and_hidden_imports_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "pkg"
    (root / "low").mkdir(parents=True)
    for path, text in {
        "__init__.py": "",
        "low/__init__.py": "",
        "low/a.py": "def f():\n    from pkg.low import b\n",
        "low/b.py": "import importlib\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.low.c import C\n",
        "low/c.py": "import importlib\nA = importlib.import_module('pkg.low.a')\nclass C: pass\n",
    }.items():
        (root / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = module_imports("pkg")
    assert set(found["pkg.low.a"]) == {"pkg.low.b"}
    assert cycles(found) == [["pkg.low.a", "pkg.low.b", "pkg.low.c"]]


def test_no_package_has_the_name_of_a_public_function(graph: networkx.DiGraph) -> None:
    import ethorch

    modules = set(packages(graph))
    functions = {name for name in ethorch.__all__ if callable(getattr(ethorch, name))}
    assert not modules & functions


def test_public_names_resolve_after_every_module_was_imported() -> None:
    """A submodule that is imported becomes an attribute of its package, and could hide a name that is loaded late."""
    code = (
        "import importlib, ethorch\n"
        "from tests.helpers.import_graph import module_imports\n"
        "optional = {'ethorch.program.explorer.main', 'ethorch.cli.__main__', 'ethorch.vela.__main__', 'ethorch.vela.child'}\n"
        "for name in sorted(module_imports()):\n"
        "    if name not in optional:\n"
        "        importlib.import_module(name)\n"
        "wrong = [name for name in ethorch.__all__ if type(getattr(ethorch, name)).__name__ == 'module' "
        "and name not in {'arm', 'boards', 'language', 'targets', 'testing', 'tosa', 'tuning'}]\n"
        "assert not wrong, wrong\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

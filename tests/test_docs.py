"""The generated pages are those of the tables as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ethorch.report import docs

pytestmark = pytest.mark.core
FOLDER = Path(__file__).parent.parent / "docs"


def test_pages_are_current() -> None:
    hint = "run `python -m ethorch.report.docs`"
    assert (FOLDER / "ops.md").read_text() == docs.operators_page(), hint
    assert (FOLDER / "targets.md").read_text() == docs.targets_page(), hint
    assert (FOLDER / "vela-bugs.md").read_text() == docs.vela_bugs_page(), hint


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_are_named_exist(page: str) -> None:
    """A path is given from the repository, from the package, or from one of its folders."""
    root = FOLDER.parent
    places = [root, *(folder for folder in (root / "ethorch").rglob("*") if folder.is_dir()), root / "ethorch", FOLDER]
    named = set(re.findall(r"`([\w./-]+\.(?:py|md|toml))`", (root / page).read_text()))
    assert named and not [name for name in named if not any((place / name).exists() for place in places)]


def test_every_package_is_in_the_architecture() -> None:
    root = FOLDER.parent / "ethorch"
    text = (FOLDER / "architecture.md").read_text()
    packages = [f"{path.parent.name}/" for path in root.glob("*/__init__.py")]
    modules = [path.name for path in root.glob("*.py") if path.name != "__init__.py"]
    assert [name for name in (*packages, *modules) if name not in text] == []

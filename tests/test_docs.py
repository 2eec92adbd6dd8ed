"""The generated pages are those of the tables as they are."""

from __future__ import annotations

from pathlib import Path

from ethorch.report import docs

FOLDER = Path(__file__).parent.parent / "docs"


def test_pages_are_current() -> None:
    hint = "run `python -m ethorch.report.docs`"
    assert (FOLDER / "ops.md").read_text() == docs.operators_page(), hint
    assert (FOLDER / "targets.md").read_text() == docs.targets_page(), hint

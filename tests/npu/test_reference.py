"""Citations of docs/npu-reference.md: "npu-reference 8.10"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "npu-reference.md"
NUMBER = r"\d+(?:\.\d+)?"
CITATION = re.compile(rf"npu-reference ({NUMBER}(?:, {NUMBER})*)")


def sections(page: str) -> set[str]:
    """Return the numbers of the page's headings."""
    return set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", page, re.M))


def sources() -> Iterator[tuple[Path, str]]:
    for folder in ("ethorch", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cpp", ".h") and path.name != "test_reference.py":
                yield path.relative_to(ROOT), path.read_text()


def cited(text: str) -> list[str]:
    return [number for numbers in CITATION.findall(text) for number in numbers.split(", ")]


def test_numbers_of_sections():
    page = "# Title\n\n## 2. Two\n### 2.10 Ten\ntext 3.1 text\n\n1. One\n   more\n10. Ten\n"
    assert sections(page) == {"2", "2.10"}
    assert cited("(npu-reference 6.2, 8.8) and npu-reference 7.") == ["6.2", "8.8", "7"]


def test_what_is_cited_is_on_the_page():
    known = sections(PAGE.read_text())
    assert len(known) > 40
    missing = [f"{path}: {number}" for path, text in sources() for number in cited(text) if number not in known]
    assert not missing, missing
    assert sum(len(cited(text)) for _, text in sources()) > 50


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (r"npu-reference(?! \d|\.md)", "a citation without a number"),
        (r"\((?:sections? )?\d+\.\d+(?:, \d+\.\d+)*\)(?!\S)", "a section of what?"),
    ],
)
def test_citations_have_one_form(other, what):
    found = [f"{path}: {m}" for path, text in sources() if "npu" in str(path) for m in re.findall(other, text)]
    assert not found, (what, found)


def test_the_page_stands_alone():
    """It names files that are here, or none."""
    page = PAGE.read_text()
    for name in re.findall(r"[\w/-]+\.md\b", page):
        assert (PAGE.parent / name).is_file(), name
    assert not re.search(r"(?<![\w.])/(?:work|tmp|home|root)/", page)

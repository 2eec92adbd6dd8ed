"""The generated pages are those of the tables as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ethorch.cli import reference
from ethorch.report.operators import operator_facts
from tools import docs, operators
from tools.messages import find_messages, messages

pytestmark = pytest.mark.core
FOLDER = Path(__file__).parent.parent.parent / "docs"


def test_pages_are_current() -> None:
    hint = "run `python -m tools.docs`"
    assert list(operator_facts()) == operators.collect(), hint
    assert (FOLDER / "ops.md").read_text() == docs.operators_page(), hint
    assert (FOLDER / "targets.md").read_text() == docs.targets_page(), hint
    assert (FOLDER / "boards.md").read_text() == docs.boards_page(), hint
    assert (FOLDER / "vela-bugs.md").read_text() == docs.vela_bugs_page(), hint
    assert (FOLDER / "reference" / "messages.md").read_text() == docs.messages_page(), hint
    assert (FOLDER / "reference" / "cli.md").read_text() == reference.page(), "run `python -m ethorch.cli.reference`"


def test_every_refusal_of_the_code_is_among_the_messages() -> None:
    known = {message.id: message for message in messages()}
    assert len(known) > 100
    for id, kind in (("operator.unknown", "refusal"), ("io.float_use", "error"), ("calibration.noise", "warning")):
        assert known[id].kind == kind and known[id].text
    assert known["GATHER.absent"].remedy == "Use a U85 target."
    assert all(message.remedy.endswith(".") or message.remedy == "..." for message in known.values() if message.kind == "refusal")


def test_messages_contain_the_texts_of_variables() -> None:
    source = """
REMEDY = "Use a U85 target."

def check(dtype, text, remedy):
    if dtype == "INT8":
        cause = f"got {dtype}"
        return Reason("a.variable", cause, f"{REMEDY} {text}")
    if dtype == "INT16":
        remedy = "Use INT8."
    cause = "expected INT8"
    return Reason("a.branches", cause, remedy)

def other(cause):
    logger.warning("%d of %.3g [a.logged]", dtype, text)
    return Reason("a.parameter", cause, REMEDY) if cause else Reason("a.parameter", "expected a cause", REMEDY)
"""
    assert [(message.id, message.text, message.remedy) for message in find_messages(source)] == [
        ("a.variable", "got ...", "Use a U85 target. ..."),
        ("a.branches", "expected INT8", "..."),
        ("a.logged", "... of ...", ""),
        ("a.parameter", "...", "Use a U85 target."),
        ("a.parameter", "expected a cause", "Use a U85 target."),
    ]
    assert not [message for message in messages() if message.text == "..."]


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

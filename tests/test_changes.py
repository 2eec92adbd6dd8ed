"""The changes that docs/architecture.md answers "Where do I change ...?" with: each applies to the tree of today, and works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "changes"
CHANGES = ("operator", "npu", "rewrite", "stream", "kernel", "row")
MOST_LINES = 60

RENEW = """{path} does not apply to the tree of today:
{error}
Make the change once more in a clean working tree, then write the patch and undo the change:
    git apply --reject {path}     # applies what fits; the rest is in *.rej
    git add --intent-to-add ethorch
    git diff -U2 ethorch > {path}
    git reset -q ethorch; git restore ethorch; git clean -fd ethorch
If files or functions have other names now, docs/architecture.md names them too."""


def copy_tree(folder: Path) -> Path:
    """Copy the package and what checks import of the tests; bytecode comes along and stays valid."""
    for part in ("ethorch", "tests/helpers"):
        shutil.copytree(ROOT / part, folder / part)
    shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")
    return folder


def apply_patch(path: Path, tree: Path) -> None:
    """Apply a patch to a tree outside of version control; fail with the way to renew it."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    run = subprocess.run(["git", "apply", str(path)], cwd=tree, env=environment, capture_output=True, text=True)
    if run.returncode:
        pytest.fail(RENEW.format(path=path.relative_to(path.parents[3]), error=run.stderr.strip()), pytrace=False)


def run_check(name: str, tree: Path) -> subprocess.CompletedProcess[str]:
    """Run the check of a change with the package in ``tree``."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    return subprocess.run(
        [sys.executable, str(FOLDER / name / "check.py")], cwd=tree, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_applies_and_does_what_it_is_for(name: str, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    before = run_check(name, tree)
    assert before.returncode == 1, f"tests/changes/{name}/check.py passes without the change"
    assert "\nAssertionError: " in before.stderr, f"without the change the check fails, but not in an assert:\n{before.stderr}"
    apply_patch(FOLDER / name / "change.patch", tree)
    after = run_check(name, tree)
    assert after.returncode == 0, f"with the change the check fails:\n{after.stderr}"


@pytest.mark.core
def test_a_patch_that_does_not_apply_is_reported_with_the_way_to_renew_it(tmp_path: Path) -> None:
    (tmp_path / "ethorch").mkdir()
    with pytest.raises(pytest.fail.Exception, match=r"(?s)rewrite/change.patch does not apply.*git diff -U2 ethorch >"):
        apply_patch(FOLDER / "rewrite" / "change.patch", tmp_path)


@pytest.mark.core
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_small(name: str) -> None:
    assert len((FOLDER / name / "change.patch").read_text().splitlines()) <= MOST_LINES


@pytest.mark.core
def test_the_architecture_answers_with_these_changes() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("## Where do I change ...?")[2].partition("\n## ")[0]
    assert re.findall(r"`tests/changes/(\w+)/change\.patch`", section) == list(CHANGES)
    assert sorted(CHANGES) == sorted(path.parent.name for path in FOLDER.glob("*/change.patch"))

"""The changes that docs/architecture.md answers "Where do I change ...?" with: each applies to the tree of today, and works."""

from __future__ import annotations

import json
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


def apply_patch(path: Path, tree: Path, *options: str) -> None:
    """Apply a patch to a tree outside of version control; fail with the way to renew it."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    run = subprocess.run(["git", "apply", *options, str(path)], cwd=tree, env=environment, capture_output=True, text=True)
    if run.returncode:
        pytest.fail(RENEW.format(path=path.relative_to(path.parents[3]), error=run.stderr.strip()), pytrace=False)


#: Run each check, and print the traceback of its error, or an empty string.
RUN_CHECKS = """
import json, runpy, sys, traceback
errors = {}
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
        errors[path] = ""
    except Exception:
        errors[path] = traceback.format_exc()
print(json.dumps(errors))
"""


def run_checks(tree: Path) -> dict[str, str]:
    """Run the checks with the package in ``tree``, in one process. Return their errors by the name of the change."""
    paths = {name: str(FOLDER / name / "check.py") for name in CHANGES}
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", RUN_CHECKS, *paths.values()]
    run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    errors = json.loads(run.stdout.splitlines()[-1])
    return {name: errors[path] for name, path in paths.items()}


def test_each_change_applies_and_does_what_it_is_for(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    for name, error in run_checks(tree).items():
        assert error, f"tests/changes/{name}/check.py passes without the change"
        assert "\nAssertionError: " in error, f"without the change {name}, the check fails, but not in an assert:\n{error}"
        apply_patch(FOLDER / name / "change.patch", tree, "--check")  # without the other changes
    for name in CHANGES:
        apply_patch(FOLDER / name / "change.patch", tree)
    for name, error in run_checks(tree).items():
        assert not error, f"with the change {name}, the check fails:\n{error}"


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

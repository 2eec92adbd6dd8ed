"""The releases that ``make test-versions`` installs are the ends of what pyproject.toml allows."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parent.parent.parent


def constraints(name: str) -> dict[str, str]:
    """Package -> release, of ``tests/versions/NAME.txt``."""
    lines = (ROOT / "tests/versions" / f"{name}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def allowed() -> dict[str, Requirement]:
    """Package -> what pyproject.toml says of it."""
    block = (ROOT / "pyproject.toml").read_text().split("\ndependencies = [")[1].split("\n]")[0]
    return {found.name: found for found in map(Requirement, re.findall(r'^    "([^"]+)"', block, re.MULTILINE))}


@pytest.mark.parametrize("name", ["oldest", "newest"])
def test_the_releases_are_allowed(name: str) -> None:
    requirements = allowed()
    for package, release in constraints(name).items():
        assert requirements[package].specifier.contains(release.replace("*", "0")), f"{package}=={release}"


def test_the_oldest_release_is_the_lower_bound() -> None:
    requirements = allowed()
    for package, release in constraints("oldest").items():
        bounds = [bound.version for bound in requirements[package].specifier if bound.operator == ">="]
        assert all(re.fullmatch(rf"{re.escape(bound)}(\.0)*", release) for bound in bounds), f"{package}=={release}"


@pytest.mark.skipif(not re.search(r"\.venv-(oldest|newest)", sys.prefix), reason="an environment of the developer's own")
def test_this_environment_has_them() -> None:
    name = os.path.basename(sys.prefix).removeprefix(".venv-")
    for package, release in constraints(name).items():
        found = version(package).partition("+")[0]
        assert re.fullmatch(re.escape(release).replace(r"\*", ".*"), found), f"{package} {found}"

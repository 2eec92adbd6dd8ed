"""Projects all the way: generated, built with ziglang, run on the virtual board; every output is the desk's, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ethorch.embedded.project_run import Options
from tests.support.firmware import NETWORKS, PUBLIC, TARGETS, built_and_run, project

CROSS_SECTION = [
    ("small", "ethos-u55-128", True),
    ("small", "ethos-u85-1024", False),
    ("two_delegates", "ethos-u65-256", True),
    ("state", "ethos-u85-256", True),
    ("sixteen_bits", "ethos-u55-128", False),
    ("codes", "ethos-u85-256", True),
]


@pytest.mark.parametrize(("name", "target", "interrupt"), CROSS_SECTION)
def test_outputs_are_the_desks(name: str, target: str, interrupt: bool, tmp_path: Path) -> None:
    project(name, target, tmp_path)
    done = built_and_run(tmp_path, Options(interrupt=interrupt))
    assert done.npu == target


def test_with_the_cores_caches_on(tmp_path: Path) -> None:
    project("small", "ethos-u55-128", tmp_path)
    done = built_and_run(tmp_path, Options(caches=True))
    assert not done.faults


@pytest.mark.long
@pytest.mark.parametrize("interrupt", [True, False], ids=["interrupt", "polled"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*NETWORKS, *PUBLIC])
def test_outputs_are_the_desks_everywhere(name: str, target: str, interrupt: bool, tmp_path: Path) -> None:
    project(name, target, tmp_path)
    built_and_run(tmp_path, Options(interrupt=interrupt))

"""Make `bench` importable from tests, which use its networks, seed random numbers, and check that a test's tools are installed."""

from __future__ import annotations

import gc
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.tools import require_tools

gc.set_threshold(50_000, 20, 25)  # of torch's objects, a look through all takes a third of a second
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# A slow computer must not fail a test.
settings.register_profile("suite", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """Let garbage collection pass over the modules and tests, which stay to the end."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the tools that a test names before its fixtures are built."""
    for mark in item.iter_markers("tools"):
        require_tools(*mark.args)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same weights and inputs in a test whatever ran before it, in whatever process."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)

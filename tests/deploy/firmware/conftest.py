"""What several tests of firmware share: C kernels on both platforms, and the Arm backend's files as tests/host has them."""

from __future__ import annotations

import pytest

from tests.helpers.c_kernels import PLATFORMS, Loaded, compiled
from tests.runtime.conftest import cortex_m_operators, incumbent

__all__ = ["cortex_m_operators", "incumbent"]


@pytest.fixture(scope="module", params=PLATFORMS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The test file's ``programs()`` in one library, on each platform: those of the cases that run."""
    calls = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    programs = request.module.programs(frozenset(call.params.get("name", "") for call in calls))
    return compiled(request.param, list(programs.values()), tmp_path_factory.mktemp("kernels")), programs

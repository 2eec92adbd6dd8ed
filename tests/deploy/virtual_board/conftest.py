"""The probe firmware, built once for all tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.virtual_board.support import compiled


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ELF file of probe.c."""
    return compiled(tmp_path_factory.mktemp("probe"))

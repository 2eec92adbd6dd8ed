"""A folder with a model and its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from ethorch import cli
from tests.cli.commands import MODEL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file and the program compiled from it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "net.py").write_text(MODEL)
    assert cli.main(["compile", f"{folder}/net.py:small", "-o", f"{folder}/net.pte"]) == 0
    assert cli.main(["compile", f"{folder}/net.py:small", "-o", f"{folder}/net"]) == 0
    return folder

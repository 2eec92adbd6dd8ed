"""Messages of other libraries are silenced only while ethorch runs, and only those without a meaning for the user."""

from __future__ import annotations

import logging

import pytest

from ethorch.support.quiet import quiet


def test_messages_of_executorch_are_silent_inside_only(caplog: pytest.LogCaptureFixture) -> None:
    def log() -> list[str]:
        caplog.clear()
        logging.warning("Torchgen is not able to parse the schema of aten::conv2d. This is not fatal.")
        logging.warning("Op aten.add.Tensor was requested for preservation by partitioner. This request is ignored.")
        logging.getLogger("executorch.exir.pass_manager").warning("PassManager is deprecated. Please use another.")
        logging.warning("of the user")
        return [record.getMessage().split()[0] for record in caplog.records]

    with quiet():
        assert log() == ["of"]
    assert log() == ["Torchgen", "Op", "PassManager", "of"]

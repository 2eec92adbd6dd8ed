"""Rows of ``Program.explain``."""

from __future__ import annotations

import pytest

from ethorch.program.explanation import explanation
from ethorch.support.errors import SpecError


def test_no_rows() -> None:
    text = str(explanation("ethos-u55-128", [], None, cpu_only=True))
    assert text.rstrip().endswith("No rows: all selected operators are on the NPU.")


def test_name_without_match() -> None:
    with pytest.raises(SpecError, match="no operator name contains 'conv'"):
        explanation("ethos-u55-128", [], None, "conv")

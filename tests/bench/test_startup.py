"""``bench.startup`` measures processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import startup


def test_cpu_seconds_are_those_of_the_process(tmp_path: Path) -> None:
    assert 0 < startup.cpu_seconds(["-c", "pass"], tmp_path) < startup.cpu_seconds(["-c", "sum(range(10**8))"], tmp_path)
    with pytest.raises(RuntimeError, match="status 3"):
        startup.cpu_seconds(["-c", "raise SystemExit(3)"], tmp_path)


def test_a_row_for_each_with_the_figure_before() -> None:
    seconds = dict.fromkeys((*startup.SCRIPTS, *startup.COMMANDS), 0.5)
    text = startup.table(seconds)
    assert "| `ethorch run net.pte` | 0.50 | 5.1 |" in text and "| `import ethorch` | 0.50 |  |" in text
    assert text.endswith("The compilation takes 1.00 times the export.")

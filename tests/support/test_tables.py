"""Tables on terminals of any width: nothing is cut off, and numbers stay whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ethorch.support import tables


def shown(width: int) -> list[str]:
    table = tables.table()
    table.add_column("operator")
    table.add_column("cycles", justify="right")
    table.add_column("module")
    table.add_row("aten.convolution.default", "1,234,567", "features.stage1.block2.conv")
    table.add_row("aten.relu.default", "89", "")
    out = io.StringIO()
    Console(file=out, width=width, force_jupyter=False, color_system=None).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [30, 40, 59, 60, 70, 120])
def test_nothing_is_cut_off(width: int) -> None:
    lines = shown(width)
    text = "".join(lines).replace(" ", "")
    assert max(map(len, lines)) <= width and "\N{HORIZONTAL ELLIPSIS}" not in text
    assert any("1,234,567" in line for line in lines)
    letters = sorted(text)
    for whole in ("aten.convolution.default", "features.stage1.block2.conv"):
        for letter in set(whole):
            assert letters.count(letter) >= whole.count(letter)


def test_a_narrow_terminal_gets_a_line_for_each_cell() -> None:
    assert shown(40) == [
        "operator  aten.convolution.default",
        "cycles    1,234,567",
        "module    features.stage1.block2.conv",
        "",
        "operator  aten.relu.default",
        "cycles    89",
        "",
    ]
    assert len(shown(120)) == 3

"""HTML for notebooks: tables, texts and bars, with every string escaped."""

from __future__ import annotations

from rich.console import Group

from ethorch.support import tables
from ethorch.support.rendering import as_html, bar_chart


def test_tables_and_texts_become_html() -> None:
    table = tables.table()
    table.add_column("operator")
    table.add_column("cycles", justify="right")
    table.add_row("<script>", "1,234")
    html = as_html(Group("2 < 3", table))
    assert html.count("<table") == html.count("</table>") == 1 and "<pre" not in html
    assert "&lt;script&gt;" in html and "2 &lt; 3" in html and "<script>" not in html
    assert 'text-align:right">1,234</td>' in html and "<th" in html


def test_a_bar_chart_scales_to_the_longest_bar() -> None:
    html = bar_chart("Cycles", [("conv & relu", 50, "50"), ("pool", 25, "25")])
    assert "width:100.0%" in html and "width:50.0%" in html and "conv &amp; relu" in html
    assert bar_chart("Cycles", []) == bar_chart("Cycles", [("none", 0, "0")]) == ""

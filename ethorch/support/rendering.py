"""Render Rich objects as text, and as HTML for notebooks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 160  # columns, enough for every table
_CELL = "padding:0.1em 1em 0.1em 0;vertical-align:top"


def as_text(renderable: RenderableType) -> str:
    """Render a Rich object as plain text without trailing spaces."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=_WIDTH, force_jupyter=False, highlight=False, markup=False, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def as_html(renderable: RenderableType) -> str:
    """Render a Rich object as HTML for ``_repr_html_``: ``<table>``, paragraphs for text, and preformatted text for the rest."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if isinstance(renderable, Group):
        return "".join(as_html(part) for part in renderable.renderables if part != "")
    if isinstance(renderable, Table):
        return _table(renderable)
    if isinstance(renderable, str | Text):
        return f'<p style="white-space:pre-wrap;max-width:60em">{escape(str(renderable))}</p>'
    return f"<pre>{escape(as_text(renderable))}</pre>"


def _table(table: object) -> str:
    from rich.table import Table

    assert isinstance(table, Table)
    styles = [f"{_CELL};text-align:{column.justify if column.justify == 'right' else 'left'}" for column in table.columns]
    lines = ['<table style="border-collapse:collapse">']
    if table.show_header:
        heads = (
            f'<th style="{style}">{escape(str(column.header))}</th>' for column, style in zip(table.columns, styles, strict=True)
        )
        lines.append(f"<thead><tr>{''.join(heads)}</tr></thead>")
    lines.append("<tbody>")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        cells = (f'<td style="{style}">{_cell(cell)}</td>' for cell, style in zip(row, styles, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "".join([*lines, "</tbody></table>"])


def _cell(cell: RenderableType) -> str:
    return escape(cell) if isinstance(cell, str) else escape(as_text(cell))


def bar_chart(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """Return a horizontal bar chart as HTML without scripts, or an empty string if no bar has a length above 0.

    Args:
        bars: Label, nonnegative length and displayed figure of each bar.
    """
    longest = max((length for _, length, _ in bars), default=0)
    if not longest:
        return ""
    rows = "".join(
        f'<tr><td style="{_CELL}">{escape(label)}</td><td style="width:20em;padding-right:1em">'
        f'<div style="height:0.8em;background:#4c78a8;width:{100 * length / longest:.1f}%"></div></td>'
        f'<td style="{_CELL};text-align:right">{escape(figure)}</td></tr>'
        for label, length, figure in bars
    )
    return f'<p>{escape(title)}</p><table style="border-collapse:collapse"><tbody>{rows}</tbody></table>'

"""What Rich draws, as text or as HTML for notebooks."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 160  # columns: no table is cut


def as_text(renderable: RenderableType) -> str:
    """Lines without colours, without spaces at their ends."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=_WIDTH, force_jupyter=False, highlight=False, markup=False, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def as_html(renderable: RenderableType) -> str:
    """A ``<pre>`` with colours, for ``_repr_html_``."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDTH, force_jupyter=False, highlight=False, markup=False, record=True)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format='<pre style="font-family:monospace">{code}</pre>')

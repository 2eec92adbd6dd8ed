"""Rich tables readable on narrow terminals."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

#: Terminal width below which wide tables are rendered as lists.
NARROW = 60


def table(*, show_header: bool = True) -> Table:
    """Create an empty table in ethorch's style. Text wraps, but numbers are never broken or truncated."""
    return _table_class()(box=None, header_style="bold", pad_edge=False, show_header=show_header)


@functools.cache
def _table_class() -> type[Table]:
    from rich.table import Table

    class Readable(Table):
        def add_column(self, *args: Any, **options: Any) -> None:
            super().add_column(*args, **{"overflow": "fold", "no_wrap": options.get("justify") == "right", **options})

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            full_width = self.__rich_measure__(console, options.update(width=10_000)).maximum
            if self.show_header and full_width > options.max_width < NARROW:
                yield from self.render_as_list()
            else:
                yield from super().__rich_console__(console, options)

        def render_as_list(self) -> RenderResult:
            for row in zip(*(column.cells for column in self.columns), strict=True):
                grid = Table.grid(padding=(0, 2))
                grid.add_column(style=self.header_style, no_wrap=True)
                grid.add_column(overflow="fold")
                for column, cell in zip(self.columns, row, strict=True):
                    if cell != "":
                        grid.add_row(column.header, cell)
                yield grid
                yield ""

    return Readable

"""Tables for people: of Rich, and readable on a narrow terminal too."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

#: Columns of a terminal below which a table that does not fit is written as a list, a line for each cell.
NARROW = 60


def table(*, show_header: bool = True) -> Table:
    """An empty table in the style of all of ethorch's. Numbers are never broken or cut off; texts go on in the next line."""
    return _kind()(box=None, header_style="bold", pad_edge=False, show_header=show_header)


@functools.cache
def _kind() -> type[Table]:
    """The class, made when the first table is: importing Rich takes 20 ms."""
    from rich.table import Table

    class Readable(Table):
        def add_column(self, *args: Any, **options: Any) -> None:
            """As of Rich: what is on the right is a number."""
            super().add_column(*args, **{"overflow": "fold", "no_wrap": options.get("justify") == "right", **options})

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            whole = self.__rich_measure__(console, options.update(width=10_000)).maximum
            if self.show_header and whole > options.max_width < NARROW:
                yield from self.listed()
            else:
                yield from super().__rich_console__(console, options)

        def listed(self) -> RenderResult:
            """The rows one below the other, with the columns' names in front of what they have."""
            for row in zip(*(column.cells for column in self.columns), strict=True):
                found = Table.grid(padding=(0, 2))
                found.add_column(style=self.header_style, no_wrap=True)
                found.add_column(overflow="fold")
                for column, cell in zip(self.columns, row, strict=True):
                    if cell != "":
                        found.add_row(column.header, cell)
                yield found
                yield ""

    return Readable

"""Subcommands that need neither model nor program: ops, targets, doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ethorch.cli.answers import Answer, Status
from ethorch.cli.app import command
from ethorch.errors import SpecError

if TYPE_CHECKING:
    from rich.table import Table

PANEL = "What there is"
_MARKS = {"ok": "ok", "warning": "?", "missing": "-", "wrong": "WRONG"}


def _table(*names: str) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name)
    return table


@command("ops", PANEL)
def ops(
    pattern: Annotated[
        str, typer.Argument(metavar="NAME", help="Part of an operator's name, or with wildcards; default: all.")
    ] = "*",
) -> Answer:
    """The operators ethorch knows: on which NPUs, in which types, within which limits."""
    from ethorch.report import listings

    found = listings.operators(pattern)
    if not found:
        raise SpecError(f"no operator is called {pattern!r}; `ethorch ops` lists all.")
    return Answer(found, lambda: listings.operators_text(found))


@command("targets", PANEL)
def targets(
    diff: Annotated[tuple[str, str] | None, typer.Option(metavar="A B", help="What differs between two targets.")] = None,
) -> Answer:
    """The NPUs ethorch knows."""
    from ethorch.report import listings

    if diff is None:
        found = listings.targets()

        def listed() -> Table:
            table = _table(*found[0])
            for row in found:
                table.add_row(*map(str, row.values()))
            return table

        return Answer(found, listed)
    differences = listings.target_differences(*diff)

    def compared() -> Table:
        table = _table("", *diff)
        for name, values in differences.items():
            table.add_row(name, *values)
        return table

    return Answer(differences, compared)


@command("doctor", PANEL)
def doctor() -> Answer:
    """What is installed, whether the versions are known to work together, what is missing and how to get it."""
    from ethorch.report.doctor import examine

    found = examine()

    def text() -> Table:
        table = _table("", "what", "found", "")
        for check in found:
            table.add_row(_MARKS[check.state], check.name, check.found, check.advice)
        return table

    wrong = any(check.state == "wrong" for check in found)
    return Answer([check.to_json() for check in found], text, Status.COULD_NOT if wrong else Status.DONE)

"""Subcommands that require neither a model nor a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli.answers import Answer, Status
from ethorch.cli.command import command, option
from ethorch.support import tables
from ethorch.support.errors import SpecError
from ethorch.support.wording import did_you_mean

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


PANEL = "Targets, boards and operators"
_MARKS = {"ok": "ok", "warning": "?", "missing": "-", "wrong": "WRONG"}


def _table(*names: str) -> Table:
    table = tables.table()
    for name in names:
        table.add_column(name)
    return table


@command("ops", PANEL)
def ops(
    pattern: Annotated[
        str, typer.Argument(metavar="NAME", help="Part of an operator's name, or a pattern with wildcards. Default: all operators.")
    ] = "*",
) -> Answer:
    """List the supported operators with their NPUs, types and limits."""
    from ethorch.report import listings

    listing = listings.operators(pattern)
    if not listing:
        meant = did_you_mean(pattern, listings.operator_names())
        raise SpecError(f"no operator matches {pattern!r}.{meant} `ethorch ops` lists all operators.")
    return Answer(listing, lambda: listings.operators_text(listing))


@command("targets", PANEL)
def targets(
    diff: Annotated[tuple[str, str] | None, option(metavar="A B", help="Print the differences between two targets.")] = None,
) -> Answer:
    """List the NPUs."""
    from ethorch.report import listings

    if diff is None:
        listing = listings.targets()

        def render() -> Table:
            table = _table(*listing[0])
            for row in listing:
                table.add_row(*map(str, row.values()))
            return table

        return Answer(listing, render)
    differences = listings.target_differences(*diff)
    return Answer(differences, lambda: _show_differences(differences))


def _show_differences(differences: dict[str, Any]) -> Group:
    from rich.console import Group

    from ethorch.report.listings import ABSENT

    names = differences["targets"]
    parts: list[Any] = []
    for title in ("facts", "limits"):
        if differences[title]:
            table = _table("" if title == "facts" else "limit", *names)
            for name, values in differences[title].items():
                if ABSENT not in values:
                    table.add_row(name, *values)
            parts += [table, ""]
    for number, name in enumerate(names):
        if absent := [operator for operator, values in differences["limits"].items() if values[number] == ABSENT]:
            parts += [f"TOSA operators that {name} does not support: {', '.join(absent)}.", ""]
    for name in names:
        if differences["operators"][name]:
            missing_in = names[1] if name == names[0] else names[0]
            parts.append(f"Operators for which {name} supports more of the tested calls than {missing_in}:")
            parts += [f"  {operator}" for operator in differences["operators"][name]]
    if not any(differences["operators"].values()):
        parts.append(f"{names[0]} and {names[1]} support the same operators.")
    return Group(*parts)


@command("doctor", PANEL)
def doctor() -> Answer:
    """Check the installation: versions, compatibility, and missing packages with installation commands."""
    from ethorch.report.doctor import examine

    checks = examine()

    def text() -> Table:
        table = _table("", "requirement", "found, or remedy")
        for check in checks:
            table.add_row(_MARKS[check.state], check.name, ": ".join(filter(None, (check.found, check.advice))))
        return table

    wrong = any(check.state == "wrong" for check in checks)
    return Answer([check.to_json() for check in checks], text, Status.NO if wrong else Status.DONE)

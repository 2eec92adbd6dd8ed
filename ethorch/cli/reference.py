"""Write docs/reference/cli.md: ``python -m ethorch.cli.reference [FILE]``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import typer

from ethorch.cli.app import COMMANDS
from ethorch.cli.command import Function, parameters
from ethorch.formats.files import write_whole

_HEAD = """# Command line

<!-- Written by `python -m ethorch.cli.reference`; a test compares it with the command line. -->

| exit status | |
| --- | --- |
| 0 | success |
| 1 | failure; the reason is printed on standard error |
| 2 | wrong usage, such as an unknown name |
| 3 | success with a negative result: a budget is exceeded, a result is not bit-exact, or a goal is missed |
| 130 | interrupted |

Every subcommand accepts `--json` (print the result or the error as JSON), `--verbose`, `--quiet` and `--traceback`.
Messages are printed on standard error. Progress is shown if standard error is a terminal. `ethorch --install-completion`
installs shell completion.
"""


def page() -> str:
    lines = [_HEAD.rstrip()]
    for name, function in sorted(COMMANDS.items()):
        lines += ["", f"## ethorch {name}", "", " ".join((function.__doc__ or "").split()), ""]
        rows = list(_rows(function))
        if rows:
            lines += ["| argument | value | |", "| --- | --- | --- |", *rows]
    return "\n".join(lines) + "\n"


def _rows(function: Function) -> Iterator[str]:
    for parameter in parameters(function):
        kind, *infos = get_args(parameter.annotation)
        info = infos[0]
        written = [info.default] if isinstance(info.default, str) else []  # Typer stores the first flag as the default
        flags = [*written, *(info.param_decls or ())] or [f"--{parameter.name.replace('_', '-')}"]
        named = [f"`{flag}`" for flag in flags] if isinstance(info, typer.models.OptionInfo) else [f"`{info.metavar}`"]
        kinds = [getattr(member, "__name__", str(member)) for member in (get_args(kind) or (kind,)) if member is not type(None)]
        value = "" if kinds == ["bool"] or not isinstance(info, typer.models.OptionInfo) else info.metavar or kinds[0].upper()
        needed = " Required." if parameter.default is inspect.Parameter.empty else ""
        meaning = " ".join((info.help or "").replace("\\[", "[").split())
        cells = ", ".join(named), value, f"{meaning}{needed}"
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    write_whole(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference/cli.md"), page().encode())

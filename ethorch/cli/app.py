"""The command line as a whole: the modules whose functions are subcommands, and ``main``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ethorch.cli import (
    aot_arm_compiler,
    board_commands,
    compress_command,
    eval_command,
    file_commands,
    firmware_commands,
    language_commands,
    model_commands,
    report_commands,
    table_commands,
)
from ethorch.cli.answers import Status
from ethorch.cli.command import COMMANDS, app
from ethorch.support.garbage import collected_seldom

__all__ = [
    "COMMANDS",
    "aot_arm_compiler",
    "app",
    "board_commands",
    "compress_command",
    "eval_command",
    "file_commands",
    "firmware_commands",
    "language_commands",
    "main",
    "model_commands",
    "report_commands",
    "table_commands",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    try:
        with collected_seldom():
            app(args=_joined(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Status.DONE if error.code is None else Status.COULD_NOT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Status.INTERRUPTED
    return Status.DONE


def _joined(arguments: Sequence[str]) -> list[str]:
    """The arguments, with ``--vela-flag --optimise=Size`` as ``--vela-flag=--optimise=Size``: an option takes no such value."""
    joined: list[str] = []
    for argument in aot_arm_compiler.with_mode(arguments) if "aot-arm-compiler" in arguments[:1] else arguments:
        if joined and joined[-1] == "--vela-flag":
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined

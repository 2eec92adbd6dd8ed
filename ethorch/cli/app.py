"""The command-line entry point, with all subcommands registered."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence

from ethorch.cli import (
    analysis_commands,
    aot_arm_compiler,
    board_commands,
    compile_command,
    firmware_commands,
    program_commands,
    search_commands,
    table_commands,
)
from ethorch.cli.answers import Status
from ethorch.cli.command import COMMANDS, app
from ethorch.support.garbage import reduce_collection

__all__ = [
    "COMMANDS",
    "analysis_commands",
    "aot_arm_compiler",
    "app",
    "board_commands",
    "compile_command",
    "firmware_commands",
    "main",
    "program_commands",
    "search_commands",
    "table_commands",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    if arguments is None:
        atexit.register(gc.freeze)  # otherwise, the collections at exit take 10% of a short command's time
    try:
        with reduce_collection():
            words = list(sys.argv[1:] if arguments is None else arguments)
            app(args=aot_arm_compiler.with_mode(words) if "aot-arm-compiler" in words[:1] else words)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Status.DONE if error.code is None else Status.FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Status.INTERRUPTED
    return Status.DONE

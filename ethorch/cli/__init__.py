"""The ``ethorch`` command. Subcommands import heavy modules only when they run."""

from ethorch.cli.app import main

__all__ = ["main"]

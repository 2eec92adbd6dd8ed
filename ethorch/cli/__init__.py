"""The ``ethorch`` command. Nothing heavy is imported before a subcommand runs, so ``--help`` answers at once."""

from ethorch.cli.app import main

__all__ = ["main"]

"""The ``ethorch`` command. Each subcommand imports heavy modules only when it runs."""

from ethorch.cli.app import main

__all__ = ["main"]

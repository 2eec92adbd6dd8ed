"""Versions of ethorch and of the packages it stands on, and which of those that only some parts need are missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from ethorch.support.errors import EthorchError

PACKAGES = ("ethorch", "torch", "torchao", "executorch", "ethos-u-vela", "tosa-tools", "numpy")


def versions() -> dict[str, str]:
    """Name -> version, ``not installed`` where there is none."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def check_installed(what: str, modules: tuple[str, ...], install: str) -> None:
    """Say what is missing before any work is done.

    Args:
        what: wants them, e.g. ``examples/digits.py``.
        modules: as they are imported.
        install: the command that installs them.

    Raises:
        EthorchError: one of the modules is not installed.
    """
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        raise EthorchError(f"{what} needs the Python packages {', '.join(modules)}; missing: {', '.join(missing)}: {install}")

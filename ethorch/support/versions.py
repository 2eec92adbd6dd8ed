"""Versions of ethorch and its dependencies."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from ethorch.support.errors import EthorchError

PACKAGES = ("ethorch", "torch", "torchao", "executorch", "ethos-u-vela", "tosa-tools", "numpy")


def versions() -> dict[str, str]:
    """Return a dict that maps each package name to its version or to ``not installed``."""
    version_by_name = {}
    for name in PACKAGES:
        try:
            version_by_name[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version_by_name[name] = "not installed"
    return version_by_name


def check_installed(user: str, modules: tuple[str, ...], install: str) -> None:
    """Check that optional modules are installed.

    Args:
        user: Program that requires the modules, e.g. ``examples/digits.py``.
        install: Command that installs the modules.

    Raises:
        EthorchError: A module is missing.
    """
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        raise EthorchError(
            f"{user} requires the Python packages {', '.join(modules)}, but {', '.join(missing)} cannot be found. Run {install}."
        )

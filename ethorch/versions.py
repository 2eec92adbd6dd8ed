"""Versions of ethorch and of the packages it stands on."""

from __future__ import annotations

import importlib.metadata

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

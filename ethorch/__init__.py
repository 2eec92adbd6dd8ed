"""Compile PyTorch models for Arm Ethos-U NPUs, and run the programs in a bit-exact simulator.

``__init__.pyi`` lists the public names. Each name is imported on first use, because importing torch and executorch
takes seconds.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import lazy_loader

from ethorch.support.garbage import delay_collection
from ethorch.support.quiet import quiet

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import a public name or a submodule, and silence the messages that torch's extensions print on import."""
    with quiet(), delay_collection():
        try:
            return _load(name)
        except AttributeError:
            if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
                raise
            return import_module(f"{__name__}.{name}")


try:
    __version__ = version("ethorch")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

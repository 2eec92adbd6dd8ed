"""ethorch: PyTorch models to Arm Ethos-U NPUs, and their programs run bit for bit in a simulator.

``__init__.pyi`` beside this file lists the public names. Each is loaded on first use, because torch and executorch
take seconds to import.
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
    """Import a public name or a submodule, without the messages that torch's extensions print on import."""
    with quiet(), delay_collection():
        try:
            return _load(name)
        except AttributeError:
            if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
                raise
            return import_module(f"{__name__}.{name}")


try:
    __version__ = version("ethorch")
except PackageNotFoundError:  # a copy of the sources that nothing installed
    __version__ = "0+unknown"

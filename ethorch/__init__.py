"""ethorch: PyTorch models to Arm Ethos-U NPUs, and their programs run bit for bit in a simulator.

``__init__.pyi`` beside this file lists the public names. Each is loaded on first use: ``import ethorch`` takes milliseconds,
not torch's and executorch's seconds.
"""

from importlib.metadata import PackageNotFoundError, version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

try:
    __version__ = version("ethorch")
except PackageNotFoundError:  # a copy of the sources that nothing installed
    __version__ = "0+unknown"

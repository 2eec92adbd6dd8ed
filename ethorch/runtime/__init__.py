"""Runs a .pte in this process: ExecuTorch's own runtime, ethorch's delegate, and the NPU simulator.

``__init__.pyi`` beside this file lists the public names. Each is loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

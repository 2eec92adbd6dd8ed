"""Bit-exact simulator of the Arm Ethos-U55, U65 and U85 that executes the command streams emitted by Vela.

``__init__.pyi`` lists the public names. Each is loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

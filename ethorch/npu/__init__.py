"""Bit-exact simulator of the Arm Ethos-U55, U65 and U85 for command streams of Vela.

``__init__.pyi`` lists the public names, which are loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""A bit-exact simulator of the Arm Ethos-U55, U65 and U85: it runs the command streams that Vela emits.

``__init__.pyi`` beside this file lists the public names. Each is loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

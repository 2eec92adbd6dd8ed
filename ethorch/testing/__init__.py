"""Test utilities: assertions, a tester like that of ExecuTorch's Arm backend, and a pytest plugin.

``__init__.pyi`` lists the public names. Each is loaded on first use, for a fast start of pytest.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

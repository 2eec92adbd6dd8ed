"""Test utilities: assertions, a tester like ArmTester in ExecuTorch's Arm backend, and a pytest plugin.

``__init__.pyi`` lists the public names. Each name is loaded on first use, so that pytest starts fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

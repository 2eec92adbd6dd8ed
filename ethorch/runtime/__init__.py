"""Run a .pte in this process with ExecuTorch's runtime, ethorch's EthosUBackend and the NPU simulator.

``__init__.pyi`` lists the public names. Each name is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""What a quantized model loses, and how to get it back; and fewer weight bytes (``compress``)."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from ethorch.tuning import compress  # 2 seconds of torch

__getattr__, _, _ = lazy_loader.attach(__name__, submodules={"compress"})

__all__ = ["compress"]

"""What a quantized model loses, and how to get it back; and fewer weight bytes (``compress``)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

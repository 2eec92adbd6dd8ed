"""TOSA 1.0 alone: operators, graphs, their text and flatbuffers; ``run`` executes one in the reference model.

``run`` is loaded on first use: whoever reads ``tosa.limits`` alone needs no NumPy.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"reference_model": ["run"]})

"""TOSA 1.0 graphs, and their text and flatbuffer formats. ``run`` executes a flatbuffer in the reference model."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"reference_model": ["run"]})

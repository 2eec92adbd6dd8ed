"""Supported names of ``executorch.backends.arm.tosa.backend``."""

from ethorch.backend.preprocess import TOSABackend

__all__ = ["TOSABackend"]

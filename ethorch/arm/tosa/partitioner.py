"""Supported names of ``executorch.backends.arm.tosa.partitioner``."""

from ethorch.backend.partitioner import TOSAPartitioner

__all__ = ["TOSAPartitioner"]

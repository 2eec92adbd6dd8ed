"""Supported modules of ``executorch.backends.arm.common``."""

"""Supported modules of ``executorch.backends.arm.util``."""

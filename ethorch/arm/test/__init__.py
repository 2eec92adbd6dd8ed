"""Supported modules of ``executorch.backends.arm.test``."""

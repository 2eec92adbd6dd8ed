"""The names of ``executorch.backends.arm.common``."""

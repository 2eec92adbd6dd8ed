"""Drop-in replacement for ``executorch.backends.arm.common``."""

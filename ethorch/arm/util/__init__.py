"""Drop-in replacement for ``executorch.backends.arm.util``."""

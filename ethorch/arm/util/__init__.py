"""The names of ``executorch.backends.arm.util``."""

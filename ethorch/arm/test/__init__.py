"""The names of ``executorch.backends.arm.test``."""

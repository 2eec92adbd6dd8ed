"""Drop-in replacement for ``executorch.backends.arm.test.tester``."""

"""The compile spec builder from earlier releases of ``executorch.backends.arm``."""

from ethorch.targets.compile_spec_builder import ArmCompileSpecBuilder

__all__ = ["ArmCompileSpecBuilder"]

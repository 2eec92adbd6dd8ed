"""The names of ``executorch.backends.arm.tosa.compile_spec``."""

from ethorch.targets.tosa_spec import TosaCompileSpec

__all__ = ["TosaCompileSpec"]

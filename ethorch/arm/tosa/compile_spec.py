"""Drop-in replacement for ``executorch.backends.arm.tosa.compile_spec``."""

from ethorch.targets.tosa_spec import TosaCompileSpec

__all__ = ["TosaCompileSpec"]

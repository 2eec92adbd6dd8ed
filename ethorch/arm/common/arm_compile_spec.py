"""Drop-in replacement for ``executorch.backends.arm.common.arm_compile_spec``."""

from ethorch.targets.compile_spec import ArmCompileSpec

__all__ = ["ArmCompileSpec"]

"""Drop-in replacement for ``executorch.backends.arm.tosa``."""

from ethorch.targets.tosa_specification import TosaSpecification

__all__ = ["TosaSpecification"]

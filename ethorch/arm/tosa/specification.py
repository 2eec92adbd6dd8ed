"""Supported names of ``executorch.backends.arm.tosa.specification``."""

from ethorch.targets.tosa_specification import TosaSpecification

__all__ = ["TosaSpecification"]

"""The TOSA specification under its module path in earlier releases of ``executorch.backends.arm``."""

from ethorch.targets.tosa_specification import TosaSpecification

__all__ = ["TosaSpecification"]

"""NPUs, boards, compile specs and settings."""

from typing import TYPE_CHECKING

import lazy_loader

from ethorch.targets.npus import LIMITS, TARGETS, TUNING, Target, lookup
from ethorch.targets.tuning import Tuning
from ethorch.tosa.limits import Limits, Range

if TYPE_CHECKING:
    from ethorch.targets import boards  # importing NumPy and the simulator's registers takes 0.15 seconds

__getattr__, _, _ = lazy_loader.attach(__name__, submodules={"boards"})

__all__ = ["LIMITS", "TARGETS", "TUNING", "Limits", "Range", "Target", "Tuning", "boards", "lookup"]

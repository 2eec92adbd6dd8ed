"""NPUs and boards as facts, compile specs as choices. A target that differs is a row that differs, never an ``if``."""

from ethorch.targets.npus import LIMITS, TARGETS, TUNING, Target, lookup
from ethorch.targets.tuning import Tuning
from ethorch.tosa.limits import Limits, Range

__all__ = ["LIMITS", "TARGETS", "TUNING", "Limits", "Range", "Target", "Tuning", "lookup"]

"""Compress weights by enforcing few values, zeros or 2:4 sparsity, based on costs from Vela's encoder."""

from ethorch.tuning.compress.apply import apply, everywhere, weights
from ethorch.tuning.compress.constrain import Constraint, constrain
from ethorch.tuning.compress.plan import plan
from ethorch.tuning.compress.planned import Layer, Plan, Tried

__all__ = ["Constraint", "Layer", "Plan", "Tried", "apply", "constrain", "everywhere", "plan", "weights"]

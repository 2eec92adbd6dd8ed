"""Fewer weight bytes and cycles: few values, zeros and 2:4 sparsity, planned by weight with Vela's own encoder as the cost."""

from ethorch.compress.apply import apply, everywhere, weights
from ethorch.compress.constrain import Constraint, constrain
from ethorch.compress.plan import plan
from ethorch.compress.planned import Layer, Plan, Tried

__all__ = ["Constraint", "Layer", "Plan", "Tried", "apply", "constrain", "everywhere", "plan", "weights"]

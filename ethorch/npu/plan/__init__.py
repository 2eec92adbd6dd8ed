"""Execution plans, which describe operations as structs that one compiled function executes instead of NumPy."""

# Prepared operations (``ethorch.npu.ops``) define the correct results. A plan contains their forms and decoded weights, scales and
# tables. Operations that cannot be proven equivalent run in Python.

from __future__ import annotations

from ethorch.npu.plan.plan import Plan, plan_of
from ethorch.npu.plan.planned import Images, Planned

__all__ = ["Images", "Plan", "Planned", "plan_of"]

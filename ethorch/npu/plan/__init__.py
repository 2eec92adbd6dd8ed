"""Plans: a program's steps as structs that one compiled function executes instead of NumPy.

Prepared operations (``ethorch.npu.ops``) are the specification. A plan contains their forms and decoded weights, scales and
tables. Steps without a proof of correctness run in Python.
"""

from __future__ import annotations

from ethorch.npu.plan.plan import Plan, plan_of
from ethorch.npu.plan.planned import Images, Planned

__all__ = ["Images", "Plan", "Planned", "plan_of"]

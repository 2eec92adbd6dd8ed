"""The plan: a program's steps as structs that one compiled function runs, in place of NumPy.

The prepared operations (``ethorch.npu.ops``) stay the specification. A plan is made of their forms and of what their code has
worked out: decoded weights, scales, tables. Whatever cannot be proven when it is made runs in Python, in between.
"""

from __future__ import annotations

from ethorch.npu.plan.plan import Plan, plan_of
from ethorch.npu.plan.planned import Images, Planned

__all__ = ["Images", "Plan", "Planned", "plan_of"]

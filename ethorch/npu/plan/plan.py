"""Execution plans, which run a ``Program`` with one memory layout, in compiled code if possible."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ethorch.npu import forms
from ethorch.npu.memory import Memory
from ethorch.npu.plan import layout
from ethorch.npu.plan.constants import Constants
from ethorch.npu.plan.convolution import pack_convolution, pack_product
from ethorch.npu.plan.dots import fuse_dots
from ethorch.npu.plan.elementwise import pack_elementwise
from ethorch.npu.plan.library import library
from ethorch.npu.plan.packing import Context, NotKnown
from ethorch.npu.plan.pool import pack_pool, pack_resize
from ethorch.npu.plan.transfer import pack_copy, pack_transfer
from ethorch.npu.prepared import Step
from ethorch.npu.program import Program
from ethorch.support.errors import MachineFault

MOST_OWN_BYTES = 1 << 28  # limit for chain buffers and accumulators; larger streams run in Python

_PACKERS: dict[type, Callable[[Context, Any], ctypes.Structure]] = {
    forms.Copy: pack_copy,
    forms.Transfer: pack_transfer,
    forms.Convolution: pack_convolution,
    forms.Product: pack_product,
    forms.Pool: pack_pool,
    forms.Elementwise: pack_elementwise,
    forms.Resize: pack_resize,
}


@dataclass(eq=False)
class Native:
    """Consecutive operations that run in compiled code."""

    steps: list[Step]
    structs: Any  # ctypes array of layout.Step
    address: int


class Plan:
    """The groups of compiled operations, and the individual operations that run in Python.

    Attributes:
        parts: Groups and individual operations in stream order.
        own_bytes: Size of the memory for chain buffers and accumulators of compiled operations.
        reasons: Reasons for running operations in Python, keyed by operation.
        is_whole: Whether compiled code runs every operation that computes or moves data.
    """

    def __init__(self, program: Program, memory: Memory):
        handle = library()
        assert handle is not None
        self.library = handle
        packed, context, self.reasons = _pack(program, memory, handle)
        fuse_dots(context, packed)
        self._kept_alive = context.kept_alive
        self.own_bytes = context.own_bytes
        self.parts: list[Native | Step] = []
        group: list[tuple[Step, ctypes.Structure]] = []
        for step, struct in packed:
            if isinstance(step.prepared.form, forms.Nothing):
                continue
            if struct is not None:
                group.append((step, struct))
                continue
            self._close(group)
            group = []
            self.parts.append(step)
        self._close(group)
        self.is_whole = not self.reasons

    def _close(self, group: list[tuple[Step, ctypes.Structure]]) -> None:
        if not group:
            return
        structs = (layout.Step * len(group))()
        for place, (_, struct) in zip(structs, group, strict=True):
            place.kind, place.what = layout.KINDS[type(struct)], ctypes.addressof(struct)
        self._kept_alive.append([struct for _, struct in group])
        self.parts.append(Native([step for step, _ in group], structs, ctypes.addressof(structs)))

    @property
    def share(self) -> float:
        """The fraction of the program's work that compiled code does."""
        native = sum(step.prepared.work for part in self.parts if isinstance(part, Native) for step in part.steps)
        left = sum(step.prepared.work for part in self.parts if isinstance(part, Step) for step in [part])
        return native / max(native + left, 1)


def _pack(
    program: Program, memory: Memory, handle: ctypes.CDLL
) -> tuple[list[tuple[Step, ctypes.Structure | None]], Context, dict[Step, str]]:
    # Steps with chain buffers or accumulators are either all packed, or all run in Python.
    for carries in (True, False):
        context = Context(memory, Constants(program.constants), handle, carries)
        if not memory.is_constant(0):
            context.constants.invalidate(0, 0, program.constants.size)
        packed: list[tuple[Step, ctypes.Structure | None]] = []
        reasons: dict[Step, str] = {}
        carried = False
        for step in program.steps():
            struct = None
            try:
                packer = _PACKERS.get(type(step.prepared.form))
                if packer is not None:
                    struct = packer(context, step.prepared.form)
                elif not isinstance(step.prepared.form, forms.Nothing):
                    reasons[step] = "no form"
            except (NotKnown, MachineFault) as why:
                reasons[step] = str(why)
            if struct is None:
                carried = carried or _carries(step)
            if struct is None:
                context.computed = None
            context.advance(step)
            if isinstance(step.prepared.form, forms.Copy):
                context.constants.copy(step.prepared.form.source, step.prepared.form.target)
            else:
                context.constants.apply(step.prepared)
            packed.append((step, struct))
        if (not carried and context.own_bytes <= MOST_OWN_BYTES) or not carries:
            break
    return packed, context, reasons


def _carries(step: Step) -> bool:
    stage = getattr(step.prepared.form, "stage", None)
    chained = any(not fm.in_memory for fm in step.prepared.maps)
    return chained or (stage is not None and (stage.keeps or bool(stage.input)))


def plan_of(program: Program, memory: Memory) -> Plan | None:
    """Return the plan, which is cached by the sizes and mutability of regions.

    Return None if compiled code is missing, the stream has branches, or regions overlap.
    """
    if program.has_branches or library() is None:
        return None
    spans = sorted((r.ctypes.data, r.ctypes.data + r.size) for r in memory.regions.values() if r.size)
    if any(a[1] > b[0] for a, b in pairwise(spans)):
        return None
    if any(not -1 <= n < layout.INTERNAL_INDEX for n in memory.regions):
        return None
    key = tuple(sorted((n, r.size, bool(r.flags.writeable)) for n, r in memory.regions.items())), memory.is_constant(0)
    plan: Plan = program.plans.get(key, lambda: Plan(program, memory))
    return plan

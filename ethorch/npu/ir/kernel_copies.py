"""Kernels that copy elements without changing them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ethorch.npu.arithmetic import Scaling
from ethorch.npu.arrays import Dtype, Ints
from ethorch.npu.feature_map import FeatureMap, type_range
from ethorch.npu.forms import Pool
from ethorch.npu.ir.stream import Op
from ethorch.npu.output import ACC_RESET, OutputStage

_WIDEST = 2  # bytes of an element whose scaling is checked for each value


@dataclass(frozen=True)
class KernelCopy:
    """A kernel that copies one feature map to another.

    Attributes:
        axes: For each axis of the target, the corresponding axis of the source.
    """

    source: FeatureMap
    target: FeatureMap
    axes: tuple[int, int, int]

    def find_sources(self) -> Ints:
        """Return the source address of each element of the target."""
        return self.source.addresses().transpose(self.axes)

    def find_targets(self) -> Ints:
        """Return the target address of each element of the source."""
        return self.target.addresses().transpose(np.argsort(self.axes))


def find_kernel_copy(op: Op) -> KernelCopy | None:
    """Return the copy that a kernel performs, or None if it changes values or uses a chained feature map."""
    if op.name != "NPU_OP_POOL":
        return None
    form = op.prepared.form
    if not isinstance(form, Pool) or form.window is None or not form.window.is_pointwise or form.window.stride != (1, 1):
        return None
    if form.kind not in ("SUM", "AVERAGE", "MAX", "MIN") or not isinstance(form.scaling, Scaling | None):
        return None
    source, stage = form.window.ifm, form.stage
    is_plain = stage.input == ACC_RESET and not stage.keeps and stage.reverse < 0 and stage.activation.table is None
    if not is_plain or not source.in_memory or not stage.ofm.in_memory or source.dtype.itemsize != stage.ofm.dtype.itemsize:
        return None
    return KernelCopy(source, stage.ofm, stage.transpose) if _preserves(source, stage, form.scaling) else None


def _preserves(source: FeatureMap, stage: OutputStage, scaling: Scaling | None) -> bool:
    clamp = stage.activation.clamp
    if source.dtype.itemsize > _WIDEST:
        is_free = clamp is None or (clamp[0] <= source.value_range[0] and source.value_range[1] <= clamp[1])
        is_same = (source.dtype, source.zero_point) == (stage.ofm.dtype, stage.ofm.zero_point)
        return is_free and is_same and scaling is not None and scaling.is_identity
    key = None if scaling is None else (int(scaling.multiplier), int(scaling.shift), scaling.rounding, scaling.double)
    return _preserves_values(source.dtype, stage.ofm.dtype, source.zero_point, stage.ofm.zero_point, clamp, key)


@lru_cache(maxsize=256)
def _preserves_values(
    source: Dtype,
    target: Dtype,
    subtracted: int,
    added: int,
    clamp: tuple[int, int] | None,
    scale: tuple[int, int, str, int] | None,
) -> bool:
    low, high = type_range(source)
    codes = np.arange(low, high + 1, dtype=np.int64)
    values = codes - subtracted
    if scale is not None:
        values = Scaling(np.int64(scale[0]), np.int64(scale[1]), scale[2], scale[3])(values)
    values += added
    if clamp is not None:
        values = values.clip(*clamp)
    return bool(np.array_equal(values.astype(target).view(source), codes.astype(source)))

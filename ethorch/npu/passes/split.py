from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ethorch.npu.feature_map import BRICK, FORMAT_NHCWB16, FeatureMap
from ethorch.npu.forms import Product
from ethorch.npu.ir import Op
from ethorch.npu.output import ACC_IFM2, ACC_KEEP, TRANSPOSES
from ethorch.npu.registers import TRANSPOSE
from ethorch.npu.window import Window

HEIGHT, WIDTH, DEPTH = range(3)
_NAMES = ("HEIGHT", "WIDTH", "DEPTH")
_FORMAT_BIT = 6  # of IFM_PRECISION, IFM2_PRECISION and OFM_PRECISION (npu-reference 2.3)
_KERNELS = ("NPU_OP_ELEMENTWISE", "NPU_OP_POOL", "NPU_OP_CONV", "NPU_OP_DEPTHWISE")
#: Pools whose output channels depend on one input channel each.
_BY_CHANNEL = ("SUM", "AVERAGE", "MAX", "MIN")


def split(op: Op, axis: int, ranges: Sequence[tuple[int, int]], keys: Sequence[int]) -> list[Op] | None:
    """Return one operation for each range of an OFM axis, or None if the operation cannot be split in this way."""
    values = op.values
    if op.name not in _KERNELS or values.get("ACC_FORMAT.input", 0) in (ACC_KEEP, ACC_IFM2) or values.get("ACC_FORMAT.output", 0):
        return None
    if values.get("OFM_PRECISION.reverse", 0) or values.get("IFM_UPSCALE", 0):
        return None
    stored = TRANSPOSES[TRANSPOSE[values.get("OFM_PRECISION.transpose", 0)]].index(axis)
    if op.name != "NPU_OP_ELEMENTWISE" and not _is_pointwise(op, axis):
        return None
    parts = []
    for (start, stop), key in zip(ranges, keys, strict=True):
        changed = _of_map(op, "OFM", _find_map(op, "OFM"), stored, start, stop)
        changed |= {f"OFM_{_NAMES[axis]}_M1": stop - start - 1}
        for prefix in ("IFM",) if isinstance(op.prepared.form, Product) else ("IFM", "IFM2"):
            fm = _find_map(op, prefix)
            if f"{prefix}_BASE0" not in op.registers or (fm is None and values.get(f"{prefix}_PRECISION.storage", 0) != 2):
                continue
            if fm is not None and fm.shape[axis] == 1 and values[f"OFM_{_NAMES[axis]}"] > 1:
                continue  # a broadcast operand
            if fm is not None and fm.shape[axis] != values[f"OFM_{_NAMES[axis]}"]:
                return None
            changed |= _of_map(op, prefix, fm, axis, start, stop)
            if axis == DEPTH and f"{prefix}_DEPTH_M1" in op.registers and op.name != "NPU_OP_ELEMENTWISE":
                changed[f"{prefix}_DEPTH_M1"] = stop - start - 1
        if "" in changed:
            return None
        parts.append(replace(op.copy(**changed), key=key))
    return parts


def _is_pointwise(op: Op, axis: int) -> bool:
    window = getattr(op.prepared.form, "window", None)
    if axis == DEPTH:
        return op.name == "NPU_OP_POOL" and getattr(op.prepared.form, "kind", "") in _BY_CHANNEL
    if window is None:
        return op.name == "NPU_OP_POOL" and getattr(op.prepared.form, "kind", "") in ("NONE", "REDUCE_SUM")
    assert isinstance(window, Window)
    return (window.extent[axis], window.stride[axis]) == (1, 1) and window.padded[axis] == window.size[axis] == window.out[axis]


def _find_map(op: Op, name: str) -> FeatureMap | None:
    accesses = op.prepared.writes if name == "OFM" else op.prepared.reads
    return next((fm for fm in accesses if isinstance(fm, FeatureMap) and fm.name == name and fm.in_memory), None)


def _of_map(op: Op, prefix: str, fm: FeatureMap | None, axis: int, start: int, stop: int) -> dict[str, int]:
    """Return the changed registers of a part of a feature map. The key "" marks a part that needs several addresses."""
    changed = {}
    size = stop - start - 1
    if axis == HEIGHT:
        changed = {f"{prefix}_HEIGHT0_M1": size, f"{prefix}_HEIGHT1_M1": size}
    elif axis == WIDTH:
        changed = {f"{prefix}_WIDTH0_M1": size}
    changed = {name: raw for name, raw in changed.items() if name in op.registers}
    if fm is None:
        return changed
    if len(fm.tiles) > 1:
        return {"": 0}
    if axis == DEPTH:
        size_bytes = fm.dtype.itemsize
        if fm.bricks and start % BRICK == 0 and stop % BRICK in (0, fm.depth % BRICK):
            distance = start // BRICK * fm.strides[2]
        elif fm.bricks and fm.height == fm.width == 1 and fm.strides[2] == BRICK * size_bytes:
            # The channels of one pixel are contiguous in both formats.
            distance = start * size_bytes
            row = (stop - start) * size_bytes
            precision = op.registers[f"{prefix}_PRECISION"] & ~(FORMAT_NHCWB16 << _FORMAT_BIT)
            changed |= {f"{prefix}_PRECISION": precision, f"{prefix}_STRIDE_C": size_bytes}
            changed |= {f"{prefix}_STRIDE_Y": row, f"{prefix}_STRIDE_X": row}
        elif fm.bricks:
            return {"": 0}
        else:
            distance = start * size_bytes
    else:
        distance = start * fm.strides[axis]
    return {**changed, f"{prefix}_BASE0": fm.bases[0] + distance}

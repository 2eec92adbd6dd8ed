"""What comparisons, logic and selection share: truth values, and operands brought to one integer unit.

A truth value is a plain tensor (its QParams are None): BOOL where the NPU has that type, else INT8 holding 0 or 1, which
has the same bytes at a delegate's boundary. ``b.forms["truth"]`` says which.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ethorch.errors import Reason
from ethorch.layout import Dims, contiguous
from ethorch.qparams import QParams, QTensor, real
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import DTYPES, Value

#: Left shift of the finer of two scales, so that comparing rounds nothing that matters and differences fit in int32.
_HEADROOM = {"INT8": 19, "INT16": 14}
_INT32_MAX = 2**31 - 1


def native(b: Builder) -> bool:
    """Has the NPU the type BOOL and operators on it?"""
    return b.truth == "BOOL"


def widened(b: Builder, value: Value) -> Value:
    """Plain integers or truth values as INT32."""
    if value.dtype == "INT32":
        return value
    if value.is_const:
        assert value.data is not None
        return b.const(value.data.astype(np.int32), name=value.name)
    if not b.integers:  # without the profile INT there is no RESCALE
        return b.cast(value, "INT32")
    if value.dtype == "BOOL":
        value = b.emit("CAST", value, dtype="INT8")
    return b.rescale(value, 1.0, dtype="INT32")


def truth_from_int8(b: Builder, value: Value) -> Value:
    """INT8 holding 0 or 1, as the NPU's truth value."""
    return b.emit("CAST", value, dtype="BOOL") if native(b) else value


def truth_table(b: Builder, value: Value, holds: Any) -> Value:
    """INT8 -> truth: ``holds`` is a function of the array of all codes. TOSA 1.0 TABLE."""
    codes = np.arange(-128, 128)
    table = b.const(np.asarray(holds(codes)).astype(np.int8), name="truth")
    return truth_from_int8(b, b.emit("TABLE", value, table))


def negated(b: Builder, value: Value) -> Value:
    """Logical not."""
    return b.emit("LOGICAL_NOT", value) if native(b) else truth_table(b, value, lambda v: v == 0)


def as_tensor(b: Builder, x: Any, dtype: str = "INT32") -> QTensor:
    """A plain tensor; a Python number or a constant array becomes one of ``dtype`` (truth values of the NPU's truth type)."""
    if isinstance(x, QTensor):
        return x
    array = np.asarray(x)
    if array.dtype == np.bool_:
        array, dtype = (array, "BOOL") if native(b) else (array.astype(np.int8), "INT8")
        return QTensor(b.const(array, dtype), contiguous(array.shape), None)
    if np.any(np.abs(array.astype(np.float64)) > _INT32_MAX) or np.any(array != np.rint(array)):
        raise b.refuse("integer.constant", f"a constant between {array.min()} and {array.max()}; allowed are integers of 32 bits")
    numpy_type = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32}[dtype]
    return QTensor(b.const(array.astype(numpy_type), dtype), contiguous(array.shape), None)


def in_one_unit(b: Builder, x: Any, y: Any) -> tuple[list[Value], Dims]:
    """Two operands as INT32 in a common unit, aligned for broadcasting: equal scales and constants exactly, others on a grid
    2**19 (int8) or 2**14 (int16) times finer than the coarser. Plain integers are their own unit."""
    tensors = [value for value in (x, y) if isinstance(value, QTensor) and value.q is not None]
    if not tensors:
        values, dims = b.aligned(as_tensor(b, x), as_tensor(b, y))
        return [widened(b, value) for value in values], dims
    constants = [_constant(value) for value in (x, y)]
    if any(constant is not None for constant in constants):
        q = tensors[0].qparams
        operands = [v if c is None else _among_codes(b, c, q) for v, c in zip((x, y), constants, strict=True)]
        values, dims = b.aligned(*operands)
        return [value if value.dtype == "INT32" else b.rescale(value, 2.0, input_zp=q.zp, dtype="INT32") for value in values], dims
    wide = "INT16" if any(t.qparams.dtype == "INT16" for t in tensors) else "INT8"
    coarse = max(t.qparams.step for t in tensors)
    exact = len(tensors) == 2 and tensors[0].qparams.step == tensors[1].qparams.step
    unit = coarse if exact else coarse / (1 << _HEADROOM[wide])

    values, dims = b.aligned(x, y)
    for k, t in enumerate((x, y)):
        if t.q is not None:
            values[k] = b.rescale(values[k], t.q.step / unit, input_zp=t.q.zp, dtype="INT32")
        else:
            values[k] = b.rescale(values[k], 1.0 / unit, dtype="INT32")
    return values, dims


def _constant(x: Any) -> np.ndarray | None:
    """The numbers of a constant that is not quantized; None of anything else."""
    if isinstance(x, QTensor):
        return x.value.data if x.q is None and x.value.is_const else None
    return np.asarray(x)


def _among_codes(b: Builder, numbers: np.ndarray, q: QParams) -> QTensor:
    """Constants in halves of a step of ``q``: even where PyTorch's float32 finds them equal to a code, odd between two codes."""
    reals, wanted = q.dequantize(q.codes), numbers.astype(np.float32)
    place = np.searchsorted(reals, wanted)
    equal = reals[np.minimum(place, reals.size - 1)] == wanted
    halves = 2 * (int(q.codes[0]) + place - q.zp) - np.logical_not(equal)
    return QTensor(b.const(halves.astype(np.int32)), contiguous(halves.shape), None)


def is_real(*operands: Any) -> bool:
    """Is there a float tensor among them?"""
    return any(isinstance(x, QTensor) and x.q is not None and x.q.is_real for x in operands)


def in_one_float(b: Builder, x: Any, y: Any) -> tuple[list[Value], Dims]:
    """Two operands in one float dtype, the wider of theirs, aligned for broadcasting; integers and numbers become floats."""
    dtypes = {value.q.dtype for value in (x, y) if isinstance(value, QTensor) and value.q is not None}
    out = real(dtypes.pop() if len(dtypes) == 1 else "FP32")
    return b.aligned(in_codes_of(b, x, out), in_codes_of(b, y, out))


def difference(b: Builder, x: Value, y: Value, *, small: bool) -> Value:
    """x - y of INT32 as INT8 with its sign and whether it is 0. ``small``: |x - y| < 2**29, which a RESCALE can saturate."""
    value = b.emit("SUB", x, y)
    if not small:
        one = b.const(np.ones((1,) * value.rank, np.int32))
        minus_one = b.const(np.full((1,) * value.rank, -1, np.int32))
        value = b.emit("MINIMUM", b.emit("MAXIMUM", value, minus_one), one)
    return b.rescale(value, 1.0, dtype="INT8")


def selected(b: Builder, condition: QTensor, x: QTensor, y: QTensor, q: QParams | None) -> QTensor:
    """condition ? x : y, whose codes mean the same. TOSA 1.0 SELECT, or c * x + (1 - c) * y, which is exact."""
    (c, xv, yv), dims = b.aligned(condition, x, y)
    if native(b):
        if c.dtype != "BOOL":
            c = b.emit("CAST", c, dtype="BOOL")
        return QTensor(b.emit("SELECT", c, xv, yv), dims, q)
    dtype, zp = xv.dtype, q.zp if q else 0

    def centred(value: Value) -> Value:
        if value.is_const:
            assert value.data is not None
            return b.const(value.data.astype(np.int32) - zp)
        return value if value.dtype == "INT32" else b.rescale(value, 1.0, input_zp=zp, dtype="INT32")

    # The second operand of a MUL is 0 or 1: no product overflows, and one summand is always 0.
    taken = b.emit("MUL", centred(xv), widened(b, c), shift=0)
    other = b.emit("MUL", centred(yv), widened(b, negated(b, c)), shift=0)
    both = b.emit("ADD", taken, other)
    return QTensor(both if dtype == "INT32" else b.rescale(both, 1.0, output_zp=zp, dtype=dtype), dims, q)


def finite(value: float, out: QParams) -> float:
    """An infinite fill value as the end of ``out``'s range."""
    low, high = ((code - out.zp) * out.step for code in (out.qmin, out.qmax))
    return min(max(value, low), high) if not math.isnan(value) else 0.0


def in_codes_of(b: Builder, x: Any, out: QParams) -> QTensor:
    """A tensor, plain integers, or a number, as codes of ``out``."""
    if isinstance(x, QTensor) and x.q is not None:
        return b.requantized(x, out)
    if isinstance(x, QTensor) and out.is_real:
        return QTensor(b.rescale(x.value, 1.0, dtype=out.dtype), x.dims, out)
    if isinstance(x, QTensor):
        scaled = b.rescale(widened(b, x.value), 1.0 / out.step, output_zp=out.zp, dtype=out.dtype)
        return QTensor(b.clamp(scaled, out.qmin, out.qmax), x.dims, out)
    if out.is_real:
        array = np.asarray(x).astype(DTYPES[out.dtype])
        return QTensor(b.const(array, out.dtype), contiguous(array.shape), out)
    array = np.asarray(x, np.float64)
    codes = out.quantize(np.clip(array, -3e38, 3e38)).astype(np.int8 if out.dtype == "INT8" else np.int16)
    return QTensor(b.const(codes, out.dtype), contiguous(codes.shape), out)


def fitting(b: Builder, x: Any, out: QParams | None) -> QTensor:
    """An operand that is only moved, as codes of ``out``; where that is None, plain integers in the result's dtype."""
    if out is not None:
        return in_codes_of(b, x, out)
    dtype = b.result_dtype or "INT32"
    x = as_tensor(b, x, dtype)
    if dtype == "BOOL" or x.value.dtype == dtype:
        return x
    return QTensor(b.rescale(widened(b, x.value), 1.0, dtype=dtype), x.dims, None)


def float_operand(name: str, *operands: Any) -> Reason | None:
    """A Reason where a constant float tensor stands among operands that are not quantized."""
    if any(isinstance(x, QTensor) and x.q is not None for x in operands):
        return None
    if any(isinstance(x, (float, np.ndarray)) and np.asarray(x).dtype.kind == "f" and np.any(np.asarray(x) % 1) for x in operands):
        return Reason(f"{name}.mixed", "integers with fractions; allowed are integers with integers, or quantized tensors")
    return None

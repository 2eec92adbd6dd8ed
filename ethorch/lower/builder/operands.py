"""Conversion of operands to the dtype or quantization parameters of an operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.builder.scaling import ScalingBuilder, saturating_reach
from ethorch.targets.tuning import UNTUNED, Tuning
from ethorch.tosa.ir import DTYPES, Value
from ethorch.tosa.layout import contiguous
from ethorch.tosa.limits import Limits

B = TypeVar("B", bound="OperandBuilder")

_INT32 = np.iinfo(np.int32)
_INTEGERS = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32}


class OperandBuilder(ScalingBuilder):
    """A builder that converts operands.

    Args:
        limits, tuning, target: See MovementBuilder.
        floats: Float dtypes that the target supports.
        integers: Whether the target supports quantized arithmetic.
    """

    def __init__(
        self,
        limits: Mapping[str, Limits] | None = None,
        *,
        tuning: Tuning = UNTUNED,
        target: str = "",
        floats: Sequence[str] = (),
        integers: bool = True,
    ):
        super().__init__(limits, tuning=tuning, target=target)
        self.floats = frozenset(floats)
        self.integers = integers

    def copy_empty(self: B) -> B:
        return type(self)(self.limits, tuning=self.tuning, target=self.target, floats=tuple(self.floats), integers=self.integers)

    # --- quantized and float tensors ----------------------------------------------------------------------------------

    def to_int32(self, x: QTensor) -> QTensor:
        """Return x - zero_point as INT32. Each call emits a separate RESCALE, because Vela fuses only RESCALEs with one user."""
        return QTensor(self.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32"), x.dims, x.q)

    def to_qparams(self, x: QTensor, out: QParams | None) -> QTensor:
        """Convert ``x`` to the quantization parameters ``out``. If ``out`` is None, return ``x`` unchanged."""
        if out is None:
            return x
        q = x.qparams
        if q.is_float and not out.is_float:
            return QTensor(self.quantize(x.value, out), x.dims, out)
        if (q.scale, q.zero_point, q.dtype) == (out.scale, out.zero_point, out.dtype):
            value = x.value if out.qmin <= q.qmin and q.qmax <= out.qmax else self.clamp(x.value, out.qmin, out.qmax)
        elif out.dtype == "INT32":
            value = self.requantize(x.value if q.dtype == "INT32" else self.to_int32(x).value, q.step, out)
        else:
            value, factor = x.value, q.step / out.step
            reach = saturating_reach(q.code_count, factor)
            if q.dtype != "INT32" and reach:
                value = self.clamp(value, q.zp - reach, q.zp + reach)
            value = self.rescale(value, factor, input_zp=q.zp, output_zp=out.zp, dtype=out.dtype)
            value = self.clamp(value, out.qmin, out.qmax)
        return QTensor(value, x.dims, out)

    # --- integers, truth values, numbers ------------------------------------------------------------------------------

    def widen(self, value: Value) -> Value:
        """Convert integers or truth values to INT32."""
        if value.dtype == "INT32":
            return value
        if value.data is not None:
            return self.const(value.data.astype(np.int32), name=value.name)
        if not self.integers:  # the profile FP has no RESCALE
            return self.cast(value, "INT32")
        if value.dtype == "BOOL":
            value = self.emit("CAST", value, dtype="INT8")
        return self.rescale(value, 1.0, dtype="INT32")

    def limit_integers(self, x: QTensor, bound: float, most: float = 0) -> QTensor:
        """Clamp INT32 integers to -bound..bound, rounded up, if their magnitude can exceed ``most``."""
        limit = math.ceil(bound)
        if x.qparams.reach <= max(limit, most):
            return x
        return QTensor(self.limit(x.value, limit), x.dims, replace(x.qparams, qmin=-limit, qmax=limit))

    def plain_tensor(self, x: Any, dtype: str = "INT32") -> QTensor:
        """Convert a constant to integers of ``dtype``, or to truth values. Return a QTensor unchanged.

        Raises:
            Unsupported: The constant is not integral or exceeds 32 bits (reason ``integer.constant``).
        """
        if isinstance(x, QTensor):
            return x
        array = np.asarray(x)
        if array.dtype == np.bool_ or dtype == "BOOL":
            array, dtype = array.astype(np.bool_), self.tuning.truth_dtype
            return QTensor(self.const(array.astype(DTYPES[dtype]), dtype), contiguous(array.shape), None)
        if np.any(array < _INT32.min) or np.any(array > _INT32.max) or np.any(array != np.rint(array)):
            text = f"expected a constant with 32-bit integers, got values from {array.min()} to {array.max()}"
            raise self.refuse(
                "integer.constant", text, "Convert the integer operand to float in the model, and quantize the operator's module."
            )
        return QTensor(self.const(array.astype(_INTEGERS[dtype]), dtype), contiguous(array.shape), None)

    def operand(self, x: Any, out: QParams) -> QTensor:
        """Convert a tensor or constant to the quantization parameters ``out``."""
        if not isinstance(x, QTensor):
            codes = np.asarray(x) if out.is_float else out.quantize(np.clip(np.asarray(x, np.float64), -3e38, 3e38))
            return QTensor(self.const(codes.astype(DTYPES[out.dtype]), out.dtype), contiguous(codes.shape), out)
        if not x.is_integer:
            return self.to_qparams(x, out)
        if out.is_float:
            return QTensor(self.rescale(x.value, 1.0, dtype=out.dtype), x.dims, out)
        scaled = self.rescale(self.widen(x.value), 1.0 / out.step, output_zp=out.zp, dtype=out.dtype)
        return QTensor(self.clamp(scaled, out.qmin, out.qmax), x.dims, out)

    def convert_operand(self, x: Any, out: Result) -> QTensor:
        """Convert an operand, e.g. of a concatenation, to the result's quantization parameters or dtype."""
        if out.q is not None:
            return self.operand(x, out.q)
        dtype = out.dtype or "INT32"
        tensor = self.plain_tensor(x, dtype)
        if dtype == "BOOL" or tensor.value.dtype == dtype:
            return tensor
        return QTensor(self.rescale(self.widen(tensor.value), 1.0, dtype=dtype), tensor.dims, None)

    def wrap(self, x: QTensor, dtype: str) -> QTensor:
        """Convert INT32 to INT8 or INT16 with wraparound. For other dtypes, return ``x`` unchanged."""
        if x.value.dtype != "INT32" or dtype not in ("INT8", "INT16"):
            return x
        if not self.integers:
            return QTensor(self.cast(x.value, dtype), x.dims, None)
        spare = self.const_like(x.value, {"INT8": 24, "INT16": 16}[dtype])
        high = self.emit("LOGICAL_LEFT_SHIFT", x.value, spare)
        value = self.emit("ARITHMETIC_RIGHT_SHIFT", high, spare, round=True)  # the bits shifted out are 0
        return QTensor(self.rescale(value, 1.0, dtype=dtype), x.dims, None)

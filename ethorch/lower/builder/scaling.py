"""Rescaling, casting and clamping."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ethorch.lower.builder.movement import MovementBuilder
from ethorch.lower.builder.qparams import QParams, dtype_range, multipliers_and_shifts
from ethorch.tosa.ir import DTYPES, FLOAT_MAX, FLOATS, Value
from ethorch.tosa.opset import FROM_UNSIGNED, TO_UNSIGNED

#: int32 activations are multiples of this number. They have 28 bits, of which float32 represents 24.
_INT32_STEPS = 8


def saturating_reach(largest: float, scale: float) -> int | None:
    """Return a clamping limit whose product with ``scale`` saturates INT16, or None if values up to ``largest`` need no clamping.

    A RESCALE whose result exceeds 32 bits is undefined (TOSA 1.0, apply_scale_32).
    """
    # 2**17 exceeds INT16
    return math.ceil((1 << 17) / scale) if largest * scale >= 2.0**30 else None


class ScalingBuilder(MovementBuilder):
    def rescale(
        self,
        value: Value,
        scale: float | Sequence[float],
        *,
        input_zp: int = 0,
        output_zp: int = 0,
        dtype: str = "INT8",
    ) -> Value:
        """Return dtype((value - input_zp) * scale + output_zp), rounded with SINGLE_ROUND.

        If ``scale`` is a sequence, it contains one scale per index of the last axis. A float value is multiplied in its own dtype,
        then cast if ``dtype`` is a float dtype.

        Raises:
            Unsupported: A scale is not positive and finite, or is too large for RESCALE (reason ``requantize.scale``).
        """
        scales = [float(scale)] if isinstance(scale, (int, float)) else [float(s) for s in scale]
        if value.dtype in FLOATS:
            if set(scales) != {1.0}:
                factors = np.asarray(scales, DTYPES[value.dtype])
                shape = (1,) * value.rank if len(scales) == 1 else (1,) * (value.rank - 1) + (len(scales),)
                value = self.emit("MUL", value, self.const(factors.reshape(shape), value.dtype), shift=0)
            return self.cast(value, dtype if dtype in FLOATS else value.dtype)
        if dtype in FLOATS:
            return self.rescale(self.dequantize(value, input_zp), scale, dtype=dtype)
        try:
            multipliers, shifts = multipliers_and_shifts(scales, bits=16 if value.dtype == "INT48" else 32)
        except OverflowError as error:
            remedy = "Calibrate with representative inputs, because the observed ranges are extremely small or large."
            raise self.refuse("requantize.scale", f"cannot requantize: {error}", remedy) from None
        return self.emit(
            "RESCALE",
            value,
            multiplier=multipliers,
            shift=shifts,
            input_zp=input_zp,
            output_zp=output_zp,
            dtype=dtype,
            per_channel=len(scales) > 1,
            input_unsigned=False,
            output_unsigned=False,
        )

    def from_unsigned(self, value: Value) -> Value:
        """Convert uint8 values stored as INT8 to int8."""
        return self.emit("RESCALE", value, **FROM_UNSIGNED)

    def to_unsigned(self, value: Value) -> Value:
        """Convert int8 values to uint8. The results are stored as INT8."""
        return self.emit("RESCALE", value, **TO_UNSIGNED)

    def requantize(self, acc: Value, scale: float | Sequence[float], out: QParams, *, largest: float = 0.0) -> Value:
        """Quantize ``acc * scale`` with the parameters ``out``. Round once and saturate.

        Args:
            largest: Largest magnitude of ``acc``. If the RESCALE could exceed 32 bits, ``acc`` is clamped first.
        """
        scales = [float(scale)] if isinstance(scale, (int, float)) else list(scale)
        reach = saturating_reach(largest, max(scales) / out.step)
        if out.dtype != "INT32" and reach:
            acc = self.limit(acc, reach)
        if out.dtype == "INT32":
            return self._requantize_to_int32(acc, [s / out.step for s in scales])
        scaled = self.rescale(acc, [s / out.step for s in scales], output_zp=out.zp, dtype=out.dtype)
        return self.clamp(scaled, out.qmin, out.qmax)

    def _requantize_to_int32(self, acc: Value, scales: list[float]) -> Value:
        # The result is a multiple of ``_INT32_STEPS``. It is clamped first, because a RESCALE to INT32 does not saturate.
        scales = [scale / _INT32_STEPS for scale in scales]
        limit = int(((1 << 31) / _INT32_STEPS - 1) / max(scales))
        if limit < 1 << 31:
            acc = self.limit(acc, limit)
        steps = self.const_like(acc, _INT32_STEPS)
        return self.emit("MUL", self.rescale(acc, scales, dtype="INT32"), steps, shift=0)

    def limit(self, value: Value, limit: int) -> Value:
        """Clamp INT32 ``value`` to -limit..limit."""
        for name, bound in (("MINIMUM", limit), ("MAXIMUM", -limit)):
            value = self.emit(name, value, self.const_like(value, bound))
        return value

    def dequantize(self, value: Value, zero_point: int) -> Value:
        """Return value - zero_point as FP32. Truth values become 0 and 1."""
        if value.dtype == "BOOL":
            ones, zeros = (self.const_like(value, number, dtype="FP32") for number in (1, 0))
            return self.emit("SELECT", value, ones, zeros)
        value = self.cast(value, "FP32")
        return value if zero_point == 0 else self.emit("SUB", value, self.const_like(value, zero_point, dtype="FP32"))

    def cast(self, value: Value, dtype: str) -> Value:
        """Emit a CAST unless ``value`` already has the dtype. Constants are cast to float dtypes at compile time."""
        if value.dtype == dtype:
            return value
        if value.data is not None and dtype in FLOATS:
            return self.const(value.data.astype(DTYPES[dtype]), dtype, value.name)
        return self.emit("CAST", value, dtype=dtype)

    def clamp(self, value: Value, low: float, high: float) -> Value:
        """Emit a CLAMP unless the bounds cover the range of the dtype."""
        if value.dtype in FLOATS:
            bound = FLOAT_MAX[value.dtype]
            low, high = max(low, -bound), min(high, bound)
            return value if (low, high) == (-bound, bound) else self.emit("CLAMP", value, min_val=float(low), max_val=float(high))
        full = dtype_range(value.dtype)
        low, high = max(low, full[0]), min(high, full[1])
        if (low, high) == full:
            return value
        return self.emit("CLAMP", value, min_val=low, max_val=high)

    def quantize(self, value: Value, out: QParams) -> Value:
        inverse = float(np.float32(1.0) / np.float32(out.step))
        scaled = self.clamp(self.rescale(value, inverse, dtype="FP32"), -(2.0**22), 2.0**22)
        codes = self.cast(self.cast(scaled, "INT32"), "FP32")
        if out.zp:
            codes = self.emit("ADD", codes, self.const_like(value, out.zp, dtype="FP32"))
        return self.cast(self.clamp(codes, out.qmin, out.qmax), out.dtype)

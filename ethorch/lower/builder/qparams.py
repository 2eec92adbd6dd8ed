"""Quantization parameters, quantized tensors, and the multiplier and shift of a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa.ir import FLOATS, Value
from ethorch.tosa.layout import Dims

#: Bounds of ``shift`` in TOSA 1.0 RESCALE.
MIN_SHIFT, MAX_SHIFT = 2, 62

PLAIN_INTEGERS = Reason(
    "graph.plain_integers", "expected a quantized input, got an integer tensor",
    "Convert the input to float in the model, and quantize the operator's module.",
)  # fmt: skip


@dataclass(frozen=True)
class QParams:
    """Affine quantization parameters: ``real = scale * (q - zero_point)`` for integers q in ``qmin..qmax``.

    ``scale`` and ``zero_point`` have one entry, or one entry for each channel along the PyTorch dimension ``axis``.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    qmin: int
    qmax: int
    dtype: str
    axis: int | None = None

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def per_channel(self) -> bool:
        return self.axis is not None

    @property
    def zp(self) -> int:
        assert self.axis is None
        return self.zero_point[0]

    @property
    def step(self) -> float:
        """The scale of per-tensor parameters."""
        assert self.axis is None
        return self.scale[0]

    @property
    def reach(self) -> float:
        """The largest magnitude of a real value."""
        return max(abs(self.qmin - self.zp), abs(self.qmax - self.zp)) * self.step

    @property
    def code_count(self) -> int:
        return self.qmax - self.qmin + 1

    @property
    def codes(self) -> npt.NDArray[np.int32]:
        """All integer values of the dtype in ascending order."""
        low, high = dtype_range(self.dtype)
        return np.arange(low, high + 1, dtype=np.int32)

    @property
    def table_inputs(self) -> npt.NDArray[np.float32]:
        """The real inputs of a TABLE: one for each integer value of the dtype, and one for 32768 if the dtype is int16."""
        return self.dequantize(self.codes if self.dtype == "INT8" else np.arange(-32768, 32769, dtype=np.int32))

    def quantize(self, real: ArrayLike) -> npt.NDArray[Any]:
        """Return round-half-even(real * (1 / scale)) + zero_point, clamped, computed in float32 like PyTorch's fake quantize."""
        if self.is_float:
            return np.asarray(real)
        inverse = np.float32(1.0) / np.float32(self.step)
        with np.errstate(over="ignore"):  # infinities are clamped to the range
            codes = np.rint(np.asarray(real, np.float32) * inverse) + np.float32(self.zp)
        return np.asarray(np.clip(np.nan_to_num(codes), self.qmin, self.qmax), np.int32)

    def dequantize(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return np.asarray((codes - self.zp) * np.float32(self.step), np.float32)


def float_qparams(dtype: str) -> QParams:
    """Return the parameters of a float dtype: scale 1, zero point 0 and an unlimited range."""
    return QParams((1.0,), (0,), -(1 << 128), 1 << 128, dtype)


def plain_qparams(value: Value) -> QParams:
    """Return the parameters of plain integers or truth values: scale 1, and the range of the constant or of the dtype."""
    if value.data is not None and value.data.size:
        return QParams((1.0,), (0,), int(value.data.min()), int(value.data.max()), "INT32")
    low, high = (0, 1) if value.dtype == "BOOL" else dtype_range(value.dtype)
    return QParams((1.0,), (0,), low, high, "INT32")


def dtype_range(dtype: str) -> tuple[int, int]:
    bits = {"INT4": 4, "INT8": 8, "INT16": 16, "INT32": 32, "INT48": 48}[dtype]
    return -(1 << bits - 1), (1 << bits - 1) - 1


@dataclass(frozen=True)
class QTensor:
    """A tensor in a lowering.

    Attributes:
        value: TOSA value with the elements, in any axis order.
        dims: The axes of ``value`` that form each PyTorch dimension.
        q: Quantization parameters, ``float_qparams(dtype)`` for floats, or None for integers and truth values.
    """

    value: Value
    dims: Dims
    q: QParams | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(self.value.shape[axis] for axis in axes) for axes in self.dims)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_integer(self) -> bool:
        """True for plain integers and truth values, which are not quantized."""
        return self.q is None

    @property
    def is_float(self) -> bool:
        return self.q is not None and self.q.is_float

    @property
    def is_quantized(self) -> bool:
        return self.q is not None and not self.q.is_float

    @property
    def qparams(self) -> QParams:
        """The quantization parameters. Raises Unsupported if ``q`` is None."""
        if self.q is None:
            raise Unsupported(PLAIN_INTEGERS)
        return self.q


@dataclass(frozen=True)
class Result:
    """The requested result of a lowering.

    Attributes:
        shape: PyTorch shape of the first result.
        dtype: TOSA name of the PyTorch dtype (FP32 for quantized results), or "" if TOSA does not support the dtype.
        q: Quantization parameters of the quantize node that reads the result, or None. See ``QTensor.q``.
    """

    shape: tuple[int, ...]
    dtype: str
    q: QParams | None = None

    @property
    def qparams(self) -> QParams:
        """The quantization parameters. Raises Unsupported if ``q`` is None."""
        if self.q is None:
            raise Unsupported(PLAIN_INTEGERS)
        return self.q


def multiplier_and_shift(scale: float, *, bits: int = 32) -> tuple[int, int]:
    """Return (multiplier, shift) with scale ~ multiplier * 2**-shift and a signed multiplier of ``bits`` bits (TOSA 1.0, RESCALE).

    Raises:
        OverflowError: The scale is not positive and finite, or is too large.
    """
    if not (scale > 0 and math.isfinite(scale)):
        raise OverflowError(f"expected a positive finite scale, got {scale}")
    mantissa, exponent = math.frexp(scale)
    digits = bits - 1
    multiplier, shift = round(mantissa * (1 << digits)), digits - exponent
    if multiplier == 1 << digits:
        multiplier, shift = multiplier >> 1, shift - 1
    if shift > MAX_SHIFT:
        multiplier, shift = multiplier >> min(shift - MAX_SHIFT, digits), MAX_SHIFT
    if shift < MIN_SHIFT:
        raise OverflowError(f"expected a scale less than 2**{digits - MIN_SHIFT}, got {scale}")
    return multiplier, shift


def multipliers_and_shifts(scales: Sequence[float], *, bits: int = 32) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pairs = [multiplier_and_shift(scale, bits=bits) for scale in scales]
    return tuple(m for m, _ in pairs), tuple(s for _, s in pairs)

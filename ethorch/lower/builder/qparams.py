"""QParams, QTensor, and the integers a scale becomes: multiplier and shift (TOSA 1.0, RESCALE)."""

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

#: TOSA 1.0 RESCALE: bounds of ``shift``.
MIN_SHIFT, MAX_SHIFT = 2, 62

PLAIN_INTEGERS = Reason(
    "graph.plain_integers", "an input holds plain integers; allowed are quantized tensors",
    "Convert it to float in the model, and quantize.",
)  # fmt: skip


@dataclass(frozen=True)
class QParams:
    """Affine quantization: ``real = scale * (q - zero_point)``, q in ``qmin..qmax`` of ``dtype``.

    ``scale`` and ``zero_point`` hold one entry, or one per index of the logical axis ``axis`` (per channel).
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    qmin: int
    qmax: int
    dtype: str
    axis: int | None = None

    @property
    def is_float(self) -> bool:
        """Are the codes the real numbers themselves (see ``float_qparams``)?"""
        return self.dtype in FLOATS

    @property
    def per_channel(self) -> bool:
        """Has each index of a logical axis a scale and zero point of its own?"""
        return self.axis is not None

    @property
    def zp(self) -> int:
        """The zero point of a per-tensor quantization."""
        assert self.axis is None
        return self.zero_point[0]

    @property
    def step(self) -> float:
        """The scale of a per-tensor quantization."""
        assert self.axis is None
        return self.scale[0]

    @property
    def code_count(self) -> int:
        """The number of codes."""
        return self.qmax - self.qmin + 1

    @property
    def codes(self) -> npt.NDArray[np.int32]:
        """Every code the dtype has, in order, as int32."""
        low, high = dtype_range(self.dtype)
        return np.arange(low, high + 1, dtype=np.int32)

    @property
    def table_inputs(self) -> npt.NDArray[np.float32]:
        """The real inputs of a TOSA 1.0 TABLE: all codes, of int16 and one beyond."""
        return self.dequantize(self.codes if self.dtype == "INT8" else np.arange(-32768, 32769, dtype=np.int32))

    def quantize(self, real: ArrayLike) -> npt.NDArray[Any]:
        """round-half-even(real / scale) + zero_point, clamped, as int32; float32 division as PyTorch's fake quantize."""
        if self.is_float:
            return np.asarray(real)
        inverse = np.float32(1.0) / np.float32(self.step)
        with np.errstate(over="ignore"):  # an infinite bound is the end of the range
            codes = np.rint(np.asarray(real, np.float32) * inverse) + np.float32(self.zp)
        return np.asarray(np.clip(np.nan_to_num(codes), self.qmin, self.qmax), np.int32)

    def dequantize(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """(codes - zero_point) * scale as float32."""
        return np.asarray((codes - self.zp) * np.float32(self.step), np.float32)


def float_qparams(dtype: str) -> QParams:
    """Numbers of a float dtype, as codes that mean themselves: scale 1, zero point 0, and a range no float leaves."""
    return QParams((1.0,), (0,), -(1 << 128), 1 << 128, dtype)


def dtype_range(dtype: str) -> tuple[int, int]:
    """(lowest, highest) integer of a TOSA dtype."""
    bits = {"INT4": 4, "INT8": 8, "INT16": 16, "INT32": 32, "INT48": 48}[dtype]
    return -(1 << bits - 1), (1 << bits - 1) - 1


@dataclass(frozen=True)
class QTensor:
    """What a lowering gets for a tensor: stored integers, how they lie in memory, and their real meaning.

    ``value`` holds the integers in whatever axis order was cheapest; ``dims`` says which of its axes make up each
    logical (PyTorch) dimension. Permutes and reshapes only change ``dims``; a TRANSPOSE is emitted where an operator
    needs another order. ``q`` is None for plain integers (indices, booleans), and ``float_qparams(dtype)`` for floats, which are
    their own meaning: an operator that does no more than move, add up and scale its codes lowers floats by the same lines.
    """

    value: Value
    dims: Dims
    q: QParams | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape, in PyTorch's order."""
        return tuple(math.prod(self.value.shape[axis] for axis in axes) for axes in self.dims)

    @property
    def rank(self) -> int:
        """How many logical dimensions it has."""
        return len(self.dims)

    @property
    def is_integer(self) -> bool:
        """Does it hold plain integers or truth values, which mean nothing but themselves?"""
        return self.q is None

    @property
    def is_float(self) -> bool:
        """Does it hold floats?"""
        return self.q is not None and self.q.is_float

    @property
    def is_quantized(self) -> bool:
        """Does it hold codes that stand for real numbers?"""
        return self.q is not None and not self.q.is_float

    @property
    def qparams(self) -> QParams:
        """``q``, of an operator that needs one.

        Raises:
            Unsupported: plain integers, which have none.
        """
        if self.q is None:
            raise Unsupported(PLAIN_INTEGERS)
        return self.q


@dataclass(frozen=True)
class Result:
    """What a lowering is asked for: the operator's result as PyTorch describes it, and in which codes.

    Attributes:
        shape: its logical shape, in PyTorch's order. Of several results the first one's.
        dtype: the TOSA name of the dtype that PyTorch gives it (FP32 for what is quantized); "" where TOSA has none, as for int64.
        q: the QParams that its quantize user wants; ``float_qparams(dtype)`` for floats; None for plain integers and truth values.
    """

    shape: tuple[int, ...]
    dtype: str
    q: QParams | None = None

    @property
    def qparams(self) -> QParams:
        """``q``, of an operator whose result has to have one.

        Raises:
            Unsupported: its result is plain integers, which have none.
        """
        if self.q is None:
            raise Unsupported(PLAIN_INTEGERS)
        return self.q


def multiplier_and_shift(scale: float, *, bits: int = 32) -> tuple[int, int]:
    """scale ~ multiplier * 2**-shift with a ``bits``-wide signed multiplier (TOSA 1.0, RESCALE: scale32 or not).

    The multiplier has its top magnitude bit set unless the shift is at its bound.

    Raises:
        OverflowError: scale is not positive and finite, or too large for the smallest shift.
    """
    if not (scale > 0 and math.isfinite(scale)):
        raise OverflowError(f"scale {scale} is not positive and finite")
    mantissa, exponent = math.frexp(scale)
    digits = bits - 1
    multiplier, shift = round(mantissa * (1 << digits)), digits - exponent
    if multiplier == 1 << digits:
        multiplier, shift = multiplier >> 1, shift - 1
    if shift > MAX_SHIFT:
        multiplier, shift = multiplier >> min(shift - MAX_SHIFT, digits), MAX_SHIFT
    if shift < MIN_SHIFT:
        raise OverflowError(f"scale {scale} needs shift {shift} < {MIN_SHIFT}")
    return multiplier, shift


def multipliers_and_shifts(scales: Sequence[float], *, bits: int = 32) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``multiplier_and_shift`` for each scale, as two tuples."""
    pairs = [multiplier_and_shift(scale, bits=bits) for scale in scales]
    return tuple(m for m, _ in pairs), tuple(s for _, s in pairs)

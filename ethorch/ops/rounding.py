"""Rounding to whole numbers: a table of int8; of int16, which has too many codes for one, arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ethorch.errors import Reason, Unsupported
from ethorch.ops import formulas as f
from ethorch.ops.spec import I8, OpSpec, Sample, table_op
from ethorch.qparams import QParams, QTensor, multiplier_and_shift
from ethorch.real import Real, quotient
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import Value

Function = Callable[[torch.Tensor], torch.Tensor]
#: The threshold for half a whole number, in parts of a code, and a slack.
Maker = Callable[[float, int], "Threshold"]

#: Parts of a code that the thresholds between whole numbers are known to.
_PARTS = 4096
#: By how many of them a code may miss a whole number and still be it: float32 holds the largest codes to about 8.
_SLACK = (1, 8, 64)


@dataclass(frozen=True)
class Threshold:
    """round((codes * _PARTS + shift - the part of them within dead..-dead) * step / _PARTS), halves up."""

    shift: int
    dead: int = 0

    def numbers(self, step: float) -> np.ndarray:
        """The whole number of each int16 code, as the RESCALE makes it (TOSA 1.0, SINGLE_ROUND)."""
        parts = np.arange(-32768, 32768, dtype=np.int64) * _PARTS
        parts = parts + self.shift - np.clip(parts, -self.dead, self.dead)
        multiplier, shift = multiplier_and_shift(step / _PARTS)
        return (parts * multiplier + (1 << shift - 1)) >> shift

    def emit(self, b: Builder, x: QTensor, step: float) -> Value:
        """INT32 of the same."""
        value = b.rescale(x.value, _PARTS, input_zp=x.qparams.zp, dtype="INT32")

        def constant(number: int) -> Value:
            return b.const(np.full((1,) * value.rank, number, np.int32), name="threshold")

        if self.dead:
            inside = b.emit("MAXIMUM", b.emit("MINIMUM", value, constant(self.dead)), constant(-self.dead))
            value = b.emit("SUB", value, inside)
        if self.shift:
            value = b.emit("ADD", value, constant(self.shift))
        return b.rescale(value, step / _PARTS, dtype="INT32")


def _floor(half: float, slack: int) -> Threshold:
    return Threshold(slack - round(half))


def _ceil(half: float, slack: int) -> Threshold:
    return Threshold(round(half) - slack)


def truncating(half: float, slack: int) -> Threshold:
    return Threshold(0, round(half) - slack)


def _nearest(half: float, slack: int) -> Threshold:
    return Threshold(0)  # halves, which go to the even number, are left to the comparison with PyTorch


def whole(b: Builder, x: QTensor, function: Function, threshold: Maker, unit: float) -> Value | None:
    """INT32 ``function`` of an int16 tensor, in units of ``unit``; None where thresholds miss PyTorch's for any code.

    A code that is a whole number but for float32's rounding may fall on either side.
    """
    wanted, step = function(torch.from_numpy(x.qparams.table_inputs)).numpy()[:-1], x.qparams.step / unit
    exact = np.arange(-32768, 32768) * step
    either = (np.abs(exact - np.rint(exact)) <= 2.0**-21 * np.abs(exact)) & (threshold is not _nearest)
    for slack in _SLACK if unit > 0 else ():
        found = threshold(_PARTS / step / 2, slack)
        if abs(found.shift) + found.dead < 1 << 30 and (np.abs(found.numbers(step) - wanted) <= either).all():
            return found.emit(b, x, step)
    return None


def _stepped(b: Builder, x: QTensor, function: Function, out: QParams) -> QTensor:
    """``function`` of an int16 tensor as tables that follow each of its jumps."""
    real = function(torch.from_numpy(x.qparams.table_inputs)).numpy()
    if not b.follows_steps(real, out):
        raise Unsupported(TOO_MANY_STEPS)
    return b.table(x, real, out, exact=True)


def _without(b: Builder, x: QTensor, number: Value, unit: float, out: QParams) -> QTensor:
    """out = x - number * unit, rounded once."""
    fine = 2.0 ** min(7, 29 - math.ceil(math.log2(max(32768 * x.qparams.step, unit) / out.step)))
    parts = [b.rescale(x.value, x.qparams.step / out.step * fine, input_zp=x.qparams.zp, dtype="INT32"),
             b.rescale(number, unit / out.step * fine, dtype="INT32")]  # fmt: skip
    return QTensor(b.requantize(b.emit("SUB", *parts), out.step / fine, out), x.dims, out)


TOO_MANY_STEPS = Reason(
    "table.int16_steps", "it jumps too often over the range of its int16 input for the tables that could follow it",
    "Quantize this module to int8, of which a table has every code.",
)  # fmt: skip


def _rounding(spec: OpSpec, function: Function, threshold: Maker) -> None:
    def lower(b: Builder, x: QTensor, *, out: QParams) -> QTensor:
        number = whole(b, x, function, threshold, 1.0)
        return QTensor(b.requantize(number, 1.0, out), x.dims, out) if number else _stepped(b, x, function, out)

    spec.lower = lower


_rounding(table_op("aten.floor.default", doc="the integer at or below x", steps=True, real="FLOOR"), torch.floor, _floor)
_rounding(table_op("aten.ceil.default", doc="the integer at or above x", steps=True, real="CEIL"), torch.ceil, _ceil)
_rounding(
    table_op("aten.round.default", doc="the nearest integer, halves to even", steps=True, real=f.rounded), torch.round, _nearest
)
_rounding(
    table_op("aten.trunc.default", "aten.fix.default", doc="the integer part of x", steps=True, real=lambda x: x.trunc()),
    torch.trunc, truncating,
)  # fmt: skip

_round_decimals = table_op(
    "aten.round.decimals", doc="the nearest multiple of 10**-decimals", calls=[{"decimals": 1}], steps=True,
    real=lambda x, decimals: f.rounded(x * 10.0**decimals) / 10.0**decimals,
)  # fmt: skip
_frac = table_op("aten.frac.default", doc="x - trunc(x)", steps=True, real=lambda x: x - x.trunc())
_remainder = table_op(
    "aten.remainder.Scalar", doc="x - floor(x / other) * other", calls=[(0.75,)], steps=True,
    real=lambda x, other: x - quotient(x, Real.of(x.b, other), "floor") * other,
)  # fmt: skip
_fmod = table_op(
    "aten.fmod.Scalar", doc="x - trunc(x / other) * other", calls=[(0.75,)], steps=True,
    real=lambda x, other: x - quotient(x, Real.of(x.b, other), "trunc") * other,
)  # fmt: skip
_divided = table_op(
    "aten.div.Scalar_mode", doc="x / other, rounded towards 0 or down", samples=[Sample(I8(3, 71), 0.5, rounding_mode="floor")],
    steps=True, real=lambda x, other, rounding_mode=None: quotient(x, Real.of(x.b, other), rounding_mode),
)  # fmt: skip


def _lower_round_decimals(b: Builder, x: QTensor, *, decimals: int, out: QParams) -> QTensor:
    unit = 10.0**-decimals
    number = whole(b, x, lambda r: torch.round(r * 10.0**decimals), _nearest, unit)
    if number:
        return QTensor(b.requantize(number, unit, out), x.dims, out)
    return _stepped(b, x, lambda r: torch.round(r, decimals=decimals), out)


def _lower_rest(function: Callable[..., torch.Tensor], mode: str, threshold: Maker) -> Callable[..., QTensor]:
    def lower(b: Builder, x: QTensor, other: float = 1.0, *, out: QParams) -> QTensor:
        # Of a negative one both round the quotient the other way; towards 0 that is the same number.
        sign, maker = (1, threshold) if other > 0 else (-1, _ceil if mode == "floor" else threshold)
        number = whole(b, x, lambda r: sign * torch.div(r, other, rounding_mode=mode), maker, abs(other))
        return _without(b, x, number, abs(other), out) if number else _stepped(b, x, lambda r: function(r, other), out)

    return lower


def _lower_divided(b: Builder, x: QTensor, other: float, *, rounding_mode: str, out: QParams) -> QTensor:
    function = functools.partial(torch.div, other=other, rounding_mode=rounding_mode)
    number = whole(b, x, function, _floor if rounding_mode == "floor" else truncating, other)
    return QTensor(b.requantize(number, 1.0, out), x.dims, out) if number else _stepped(b, x, function, out)


_round_decimals.lower = _lower_round_decimals
_remainder.lower = _lower_rest(torch.remainder, "floor", _floor)
_fmod.lower = _lower_rest(torch.fmod, "trunc", truncating)
_frac.lower = _lower_rest(torch.fmod, "trunc", truncating)
_divided.lower = _lower_divided

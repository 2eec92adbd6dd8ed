"""Rounding to integers, and remainders.

int8 operators use a table. int16 operators use a ``Threshold`` if its results match PyTorch's; otherwise, they use tables that
represent the discontinuities.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ethorch.lower.builder import float_functions as f
from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FloatTensor, quotient
from ethorch.lower.builder.qparams import QParams, QTensor, Result, multiplier_and_shift
from ethorch.lower.fx.aten_builder import AtenBuilder
from ethorch.lower.fx.node import is_float, is_int64
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import table_op
from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa.ir import Value

aten = torch.ops.aten

Function = Callable[[torch.Tensor], torch.Tensor]
#: Function of (half an integer, slack), in units of 1 / _PARTS input step, that returns the threshold.
Maker = Callable[[float, int], "Threshold"]

#: Resolution of the thresholds between integers: the number of units in an input step.
_PARTS = 4096
#: Units by which a value may differ from an integer. float32 represents the largest values to about 8 units.
_SLACK = (1, 8, 64)


@dataclass(frozen=True)
class Threshold:
    """A conversion of int16 values to integers: round((units - clamp(units, -dead, dead) + shift) * step / _PARTS).

    ``units`` is the int16 value times ``_PARTS``, and ``step`` is the value's scale. Halves are rounded up.
    """

    shift: int
    dead: int = 0

    def numbers(self, step: float) -> npt.NDArray[np.int64]:
        """Return int64[65536], the results for all int16 values with scale ``step`` (TOSA 1.0, SINGLE_ROUND)."""
        parts = np.arange(-32768, 32768, dtype=np.int64) * _PARTS
        parts = parts + self.shift - np.clip(parts, -self.dead, self.dead)
        multiplier, shift = multiplier_and_shift(step / _PARTS)
        return (parts * multiplier + (1 << shift - 1)) >> shift

    def emit(self, b: Builder, x: QTensor, step: float) -> Value:
        value = b.rescale(x.value, _PARTS, input_zp=x.qparams.zp, dtype="INT32")
        constant = functools.partial(b.const_like, value, name="threshold")
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


def truncate(half: float, slack: int) -> Threshold:
    """Return a Threshold that rounds towards 0. It moves values towards 0 by up to 1/2 before rounding."""
    return Threshold(0, round(half) - slack)


def _nearest(half: float, slack: int) -> Threshold:
    return Threshold(0)  # PyTorch rounds halves to even; ``match_thresholds`` detects differences


def match_thresholds(b: Builder, x: QTensor, function: Function, threshold: Maker, unit: float) -> Value | None:
    """Use a Threshold to compute INT32 ``function(x)`` for int16 ``x``. ``function`` rounds x / ``unit`` to an integer.

    Return None if no Threshold produces PyTorch's results. A quotient within float32 precision of an integer may be rounded to
    either side.
    """
    expected, step = function(torch.from_numpy(x.qparams.table_inputs)).numpy()[:-1], x.qparams.step / unit
    exact = np.arange(-32768, 32768) * step
    either = (np.abs(exact - np.rint(exact)) <= 2.0**-21 * np.abs(exact)) & (threshold is not _nearest)
    for slack in _SLACK if unit > 0 else ():
        candidate = threshold(_PARTS / step / 2, slack)
        if abs(candidate.shift) + candidate.dead < 1 << 30 and (np.abs(candidate.numbers(step) - expected) <= either).all():
            return candidate.emit(b, x, step)
    return None


def _tabulate_discontinuities(b: Builder, x: QTensor, function: Function, out: QParams) -> QTensor:
    real = function(torch.from_numpy(x.qparams.table_inputs)).numpy()
    if not b.follows_steps(real, out):
        raise Unsupported(TOO_MANY_STEPS)
    return b.table(x, real, out, exact=True)


def _subtract_multiple(b: Builder, x: QTensor, number: Value, unit: float, out: QParams) -> QTensor:
    fine = 2.0 ** min(7, 29 - math.ceil(math.log2(max(32768 * x.qparams.step, unit) / out.step)))
    parts = [
        b.rescale(x.value, x.qparams.step / out.step * fine, input_zp=x.qparams.zp, dtype="INT32"),
        b.rescale(number, unit / out.step * fine, dtype="INT32"),
    ]
    return QTensor(b.requantize(b.emit("SUB", *parts), out.step / fine, out), x.dims, out)


TOO_MANY_STEPS = Reason(
    "table.int16_steps", "the function has more discontinuities over the range of the int16 input than tables can represent",
    "Quantize the operator's module to int8, for which a table has an entry for every value.",
)  # fmt: skip


def _lower_rounding(function: Function, threshold: Maker) -> Callable[..., QTensor]:
    def lower_rounding(b: Builder, x: QTensor, *, out: Result) -> QTensor:
        number = match_thresholds(b, x, function, threshold, 1.0)
        q = out.qparams
        return QTensor(b.requantize(number, 1.0, q), x.dims, q) if number else _tabulate_discontinuities(b, x, function, q)

    return lower_rounding


def _lower_round_decimals(b: Builder, x: QTensor, *, decimals: int, out: Result) -> QTensor:
    unit = 10.0**-decimals
    number = match_thresholds(b, x, lambda r: torch.round(r * 10.0**decimals), _nearest, unit)
    if number:
        return QTensor(b.requantize(number, unit, out.qparams), x.dims, out.qparams)
    return _tabulate_discontinuities(b, x, lambda r: torch.round(r, decimals=decimals), out.qparams)


def _lower_rest(function: Callable[..., torch.Tensor], mode: str, threshold: Maker) -> Callable[..., QTensor]:
    def lower_rest(b: Builder, x: QTensor, divisor: float = 1.0, *, out: Result) -> QTensor:
        # A negative divisor reverses the direction of rounding.
        sign, maker = (1, threshold) if divisor > 0 else (-1, _ceil if mode == "floor" else threshold)
        number = match_thresholds(b, x, lambda r: sign * torch.div(r, divisor, rounding_mode=mode), maker, abs(divisor))
        q = out.qparams
        return (
            _subtract_multiple(b, x, number, abs(divisor), q)
            if number
            else _tabulate_discontinuities(b, x, lambda r: function(r, divisor), q)
        )

    return lower_rest


def _lower_division(b: Builder, x: QTensor, divisor: float, *, rounding_mode: str, out: Result) -> QTensor:
    function = functools.partial(torch.div, other=divisor, rounding_mode=rounding_mode)
    number = match_thresholds(b, x, function, _floor if rounding_mode == "floor" else truncate, divisor)
    q = out.qparams
    return QTensor(b.requantize(number, 1.0, q), x.dims, q) if number else _tabulate_discontinuities(b, x, function, q)


table_op(
    "aten.floor.default",
    doc="the largest integer that is at most x",
    steps=True,
    floats="FLOOR",
    lower=_lower_rounding(torch.floor, _floor),
)
table_op(
    "aten.ceil.default",
    doc="the smallest integer that is at least x",
    steps=True,
    floats="CEIL",
    lower=_lower_rounding(torch.ceil, _ceil),
)
table_op(
    "aten.round.default",
    doc="the nearest integer; halves round to even",
    steps=True,
    floats=f.round_half_even,
    lower=_lower_rounding(torch.round, _nearest),
)
table_op(
    "aten.trunc.default",
    "aten.fix.default",
    doc="the integer part of x",
    steps=True,
    floats=lambda x: x.trunc(),
    lower=_lower_rounding(torch.trunc, truncate),
)
table_op(
    "aten.round.decimals",
    doc="the nearest multiple of 10**-decimals",
    calls=[{"decimals": 1}],
    steps=True,
    floats=lambda x, decimals: f.round_half_even(x * 10.0**decimals) / 10.0**decimals,
    lower=_lower_round_decimals,
)
table_op(
    "aten.frac.default",
    doc="x - trunc(x)",
    steps=True,
    floats=lambda x: x - x.trunc(),
    lower=_lower_rest(torch.fmod, "trunc", truncate),
)


def _widen_bool(s: AtenBuilder, x: Any, dtype: torch.dtype) -> Any:
    is_bool = isinstance(x, Node) and x.meta["val"].dtype == torch.bool
    return s(aten._to_copy.default, x, dtype=dtype) if is_bool else x


def integer_remainder(s: AtenBuilder, x: Node, y: Any, rounding_mode: str) -> Node | None:
    """Insert x - y * round(x / y) for integers of at most 32 bits, or return None for other operands."""
    operands = [x, y] if isinstance(y, Node) else [x]
    if any(is_float(node) or is_int64(node) for node in operands) or isinstance(y, float):
        return None
    dtype = torch.result_type(x.meta["val"], y.meta["val"] if isinstance(y, Node) else y)
    if dtype == torch.int64:
        return None
    x, y = (_widen_bool(s, operand, dtype) for operand in (x, y))
    is_power = isinstance(y, int) and 0 < y < 1 << 30 and y.bit_count() == 1
    if is_power and rounding_mode == "floor" and x.meta["val"].dtype == torch.int32:
        quotients = s(aten.__rshift__.Scalar, x, y.bit_length() - 1)  # all NPUs support shifts, only some support division
    else:
        quotients = s(aten.div.Tensor_mode, x, y, rounding_mode=rounding_mode)
    return s(aten.sub.Tensor, x, s(aten.mul.Tensor, quotients, y))


remainder = table_op(
    "aten.remainder.Scalar",
    decompose=lambda s, x, other: integer_remainder(s, x, other, "floor"),
    doc="x - floor(x / other) * other",
    calls=[(0.75,)],
    steps=True,
    floats=lambda x, other: x - quotient(x, FloatTensor.of(x.b, other), "floor") * other,
    lower=_lower_rest(torch.remainder, "floor", _floor),
)
table_op(
    "aten.fmod.Scalar",
    decompose=lambda s, x, other: integer_remainder(s, x, other, "trunc"),
    doc="x - trunc(x / other) * other",
    calls=[(0.75,)],
    steps=True,
    floats=lambda x, other: x - quotient(x, FloatTensor.of(x.b, other), "trunc") * other,
    lower=_lower_rest(torch.fmod, "trunc", truncate),
)
table_op(
    "aten.div.Scalar_mode",
    doc="x / other, rounded towards 0 or down",
    samples=[Sample(I8(3, 71), 0.5, rounding_mode="floor")],
    steps=True,
    floats=lambda x, other, rounding_mode=None: quotient(x, FloatTensor.of(x.b, other), rounding_mode),
    lower=_lower_division,
)

"""Lowerings of grid_sample and affine_grid with fixed-point coordinates. grid_sample uses a GATHER for each neighboring pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FP32, FloatTensor
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import tensor_of
from ethorch.lower.ops.quant_rules import EACH_INPUT
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import op
from ethorch.support.errors import Reason
from ethorch.tosa.ir import DTYPES, Value

aten = torch.ops.aten

#: PyTorch's interpolation modes and padding modes.
BILINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2
#: Maximum number of elements of the matrix for a constant grid (16 MiB of weights).
_LARGEST_MATRIX = 1 << 24
#: Fractional bits of a coordinate. A value times two fractions of 11 bits fits int32; 14 bits require an extra rounding.
_FRACTION = {"INT8": 11, "INT16": 14}
#: Fractional bits of a coordinate of ``affine_grid``. A sum of four products is below 2**31.
_COORDINATE = {"INT8": 20, "INT16": 14}
#: Maximum number of fractional bits of a rounded coordinate.
_FINEST = 20


class _IntegerTensor:
    def __init__(self, b: Builder, value: Value):
        self.b, self.value = b, value

    def _with(self, name: str, operand: _IntegerTensor | int, **attrs: Any) -> _IntegerTensor:
        y = self.b.const_like(self.value, operand) if isinstance(operand, int) else operand.value
        return _IntegerTensor(self.b, self.b.emit(name, self.value, y, **attrs))

    def __add__(self, operand: _IntegerTensor | int) -> _IntegerTensor:
        return self if operand == 0 else self._with("ADD", operand)

    def __sub__(self, operand: _IntegerTensor | int) -> _IntegerTensor:
        return self._with("SUB", operand)

    def __mul__(self, operand: _IntegerTensor | int) -> _IntegerTensor:
        return self if operand == 1 else self._with("MUL", operand, shift=0)

    def __and__(self, operand: int) -> _IntegerTensor:
        return self._with("BITWISE_AND", operand)

    def __rshift__(self, bits: int) -> _IntegerTensor:
        return self._with("ARITHMETIC_RIGHT_SHIFT", bits, round=False)

    def __floordiv__(self, operand: int) -> _IntegerTensor:
        return self._with("INTDIV", operand)

    def clamp(self, low: int, high: int) -> _IntegerTensor:
        return self._with("MAXIMUM", low)._with("MINIMUM", high)


def _pixels(grid: float, extent: int, align_corners: bool) -> float:
    return (grid + 1) / 2 * (extent - 1) if align_corners else ((grid + 1) * extent - 1) / 2


def _place(b: Builder, grid: QTensor, axis: int, extent: int, bits: int, align_corners: bool) -> _IntegerTensor:
    coordinate = b.reshape(b.logical(b.narrow(grid, -1, axis, 1)), (grid.shape[0], math.prod(grid.shape[1:-1]), 1))
    half = ((extent - 1) if align_corners else extent) / 2
    scaled = b.rescale(coordinate, grid.qparams.step * half * (1 << bits), input_zp=grid.qparams.zp, dtype="INT32")
    return _IntegerTensor(b, scaled) + round(_pixels(0.0, extent, align_corners) * (1 << bits))


def _bits(grid: QTensor, extent: int, most: int) -> int:
    codes = max(abs(grid.qparams.qmin - grid.qparams.zp), abs(grid.qparams.qmax - grid.qparams.zp))
    return min(most, 29 - math.ceil(math.log2(max(2.0, (codes * grid.qparams.step + 1) * extent))))


def _reflect(place: _IntegerTensor, extent: int, bits: int, align_corners: bool) -> _IntegerTensor:
    low, span = (0, (extent - 1) << bits) if align_corners else (-(1 << bits >> 1), extent << bits)
    if span == 0:
        return place * 0
    away = place - low
    away = _IntegerTensor(place.b, place.b.emit("ABS", away.value))
    flips = away // span
    rest = away - flips * span
    return rest + (flips & 1) * (rest * -2 + span) + low


def _move_into_map(place: _IntegerTensor, extent: int, bits: int, padding: int, align_corners: bool) -> _IntegerTensor:
    if padding == ZEROS:
        return place.clamp(-(1 << bits), extent << bits)
    if padding == REFLECTION:
        place = _reflect(place, extent, bits, align_corners)
    return place.clamp(0, (extent - 1) << bits)


def _round_to_even(place: _IntegerTensor, bits: int) -> _IntegerTensor:
    return (place + ((place >> bits) & 1) + ((1 << bits - 1) - 1)) >> bits


def _map(b: Builder, x: QTensor, zero: int | float) -> tuple[Value, int]:
    n, height, width, channels = (value := b.nhwc(x)).shape
    value = b.emit("PAD", value, padding=(0, 0, 1, 2, 1, 2, 0, 0), pad_const=zero)
    return b.reshape(value, (n, (height + 3) * (width + 3), channels)), width + 3


def _lerp(b: Builder, first: Value, second: Value, part: Value, bits: int) -> Value:
    change = b.emit("MUL", b.emit("SUB", second, first), part, shift=0)
    return b.emit("ADD", b.emit("MUL", first, b.const_like(first, 1 << bits), shift=0), change)


def check_grid_sampler(x: Any, grid: Any, interpolation: int, padding: int, align: bool) -> Reason | None:
    if len(x.shape) != 4:
        return Reason(
            "grid_sampler.rank", f"expected an input of rank 4, [N, C, H, W], got rank {len(x.shape)}",
            "Sample each slice of a volume, and interpolate between the two nearest slices.",
        )  # fmt: skip
    if interpolation not in (BILINEAR, NEAREST):
        return Reason("grid_sampler.mode", "expected mode bilinear or nearest, got bicubic", 'Use mode="bilinear".')
    return None


def _find_constant_grid(s: AtenBuilder, grid: Any) -> torch.Tensor | None:
    constant = tensor_of(s.model, grid) if isinstance(grid, Node) and grid.op == "get_attr" else None
    return constant.detach()[:1] if constant is not None and bool((constant == constant[:1]).all()) else None


def decompose_grid_sampler(s: AtenBuilder, x: Node, grid: Any, interpolation: int, padding: int, align: bool) -> Node | None:
    constant, shape = _find_constant_grid(s, grid), shape_of(x)
    if constant is None or len(shape) != 4:
        return None
    (n, channels, height, width), (_, rows, columns, _) = shape, constant.shape
    if height * width * rows * columns > _LARGEST_MATRIX:
        return None
    every = torch.eye(height * width).reshape(1, height * width, height, width)
    matrix = aten.grid_sampler_2d(every, constant.float(), interpolation, padding, align).reshape(height * width, rows * columns)
    flat = s(aten.reshape.default, x, [n, channels, height * width])
    sampled = s(aten.linear.default, flat, s.constant(matrix.T.contiguous()))
    return s(aten.reshape.default, sampled, [n, channels, rows, columns])


def grid_sampler_of_floats(
    b: Builder, x: QTensor, grid: QTensor, interpolation: int, padding: int, align: bool, *, out: Result
) -> FloatTensor:
    n, places = grid.shape[0], math.prod(grid.shape[1:-1])
    values, row = _map(b, FloatTensor.of(b, x).t, 0.0)
    starts, parts = [], []
    for axis, extent in ((0, x.shape[-1]), (1, x.shape[-2])):
        part = FloatTensor.of(b, b.view(b.narrow(grid, -1, axis, 1), (n, places, 1)))
        place = (part + 1.0) * ((extent - 1) / 2) if align else ((part + 1.0) * float(extent) - 1.0) / 2
        if padding == REFLECTION:
            low, span = (0.0, extent - 1.0) if align else (-0.5, float(extent))
            away = (place - low).abs()
            rest = away - (away / span).floor() * span if span else away * 0.0
            odd = (away / span).floor() - (away / (2 * span)).floor() * 2.0 if span else away * 0.0
            place = rest + odd * (span - rest * 2.0) + low
        place = place.clamp(*((-1.0, float(extent)) if padding == ZEROS else (0.0, extent - 1.0)))
        start = place.floor()
        if interpolation == NEAREST:
            start = FloatTensor(b, QTensor(b.cast(b.cast(place.t.value, "INT32"), "FP32"), place.t.dims, FP32))
        starts.append(start)
        parts.append(place - start)
    flat = starts[1] * float(row) + starts[0] + float(row + 1)
    first = _IntegerTensor(b, b.reshape(b.cast(b.logical(flat.t), "INT32"), (n, places)))

    def read(offset: int) -> FloatTensor:
        value = b.emit("GATHER", values, (first + offset).value)
        return FloatTensor(b, b.from_order(value, (0, 1, 2), FP32))

    if interpolation == NEAREST:
        samples = read(0)
    else:
        above, below = (read(k) * (1.0 - parts[0]) + read(k + 1) * parts[0] for k in (0, row))
        samples = above * (1.0 - parts[1]) + below * parts[1]
    value = b.reshape(b.logical(samples.t), (n, *grid.shape[1:-1], x.shape[1]))
    return FloatTensor(b, b.from_nhwc(value, FP32))


_ONE = (I8(1, 3, 5, 6), I8(1, 4, 7, 2, low=-1.3, high=1.3))
_TWO = (I8(2, 4, 6, 4), I8(2, 3, 5, 2, low=-1.1, high=1.1))


@op(
    "aten.grid_sampler.default",
    "aten.grid_sampler_2d.default",
    quant=EACH_INPUT,
    check=check_grid_sampler,
    decompose=decompose_grid_sampler,
    floats=grid_sampler_of_floats,
    samples=[
        Sample(*_ONE, BILINEAR, ZEROS, False),
        Sample(*_TWO, BILINEAR, BORDER, True),
        Sample(*_TWO, BILINEAR, REFLECTION, False),
        Sample(*_ONE, BILINEAR, REFLECTION, True),
        Sample(*_ONE, NEAREST, ZEROS, True),
        Sample(*_TWO, NEAREST, BORDER, False),
        Sample(*_TWO, NEAREST, REFLECTION, False),
        Sample(I8(2, 3, 4, 5), torch.linspace(-1.2, 1.1, 24).reshape(1, 3, 4, 2).expand(2, -1, -1, -1), BILINEAR, ZEROS, False),
    ],
    bound16=2,
)
def grid_sampler(b: Builder, x: QTensor, grid: QTensor, interpolation: int, padding: int, align: bool, *, out: Result) -> QTensor:
    """Sample x[n,c] at each position grid[n,i,j] in -1..1: [N,C,H,W], [N,OH,OW,2] -> [N,C,OH,OW]. TOSA GATHER.

    Coordinates have up to 11 fractional bits for int8, 14 for int16, and 20 in nearest mode. The result is rounded once, or twice
    for int16. A constant grid that is equal for all n becomes a linear layer with at most 2**24 weights.
    """
    limits = b.limits.get("GATHER")
    if limits is not None and not limits.present:
        remedy = "Use an ethos-u85 target, or a constant grid that is equal for all images, with H * W * OH * OW up to 16,777,216."
        raise b.refuse("grid_sampler.computed", f"the grid requires GATHER, which is not supported on {b.target}", remedy)
    n, places = grid.shape[0], math.prod(grid.shape[1:-1])
    values, row = _map(b, x, x.qparams.zp)
    most = _FINEST if interpolation == NEAREST else _FRACTION[x.qparams.dtype]
    starts, parts, fractions = [], [], []
    for axis, extent in ((0, x.shape[-1]), (1, x.shape[-2])):
        bits = _bits(grid, extent, most)
        place = _move_into_map(_place(b, grid, axis, extent, bits, align), extent, bits, padding, align)
        start = _round_to_even(place, bits) if interpolation == NEAREST else place >> bits
        starts.append(start)
        parts.append(place & ((1 << bits) - 1))
        fractions.append(bits)
    flat = starts[1] * row + starts[0]

    def read(offset: int) -> Value:
        index = b.reshape((flat + (offset + row + 1)).value, (n, places))
        return b.emit("GATHER", values, index)

    if interpolation == NEAREST:
        return b.to_qparams(b.from_nhwc(b.reshape(read(0), (n, *grid.shape[1:-1], x.shape[1])), x.q), out.qparams)

    def wide(offset: int) -> Value:
        return b.rescale(read(offset), 1.0, input_zp=x.qparams.zp, dtype="INT32")

    above, below = (_lerp(b, wide(k), wide(k + 1), parts[0].value, fractions[0]) for k in (0, row))
    scale = x.qparams.step / (1 << fractions[0])
    if x.qparams.dtype == "INT16":  # one bit more than an input value, so that the second product fits int32
        above, below = (b.rescale(half, 2.0 ** (1 - fractions[0]), dtype="INT32") for half in (above, below))
        scale = x.qparams.step / 2
    acc = _lerp(b, above, below, parts[1].value, fractions[1])
    codes = b.requantize(acc, scale / (1 << fractions[1]), out.qparams)
    return b.from_nhwc(b.reshape(codes, (n, *grid.shape[1:-1], x.shape[1])), out.qparams)


def _affine_sum(b: Builder, theta: Value, size: Sequence[int], align_corners: bool, unit: float) -> Value:
    axes, rows = theta.shape[1], theta.shape[0] * theta.shape[1]
    grid = aten.affine_grid_generator(torch.eye(axes, axes + 1)[None], [1, 1, *size[2:]], align_corners).double()
    columns = b.reshape(theta, (rows, axes + 1, *[1] * (axes - 1)))

    def term(column: int, numbers: Any) -> Value:
        codes = np.round(np.asarray(numbers) * unit) if unit != 1 else np.asarray(numbers)
        factors = b.const(codes.astype(DTYPES[theta.dtype]))
        return b.emit("MUL", b.reshape(b.slice_axis(columns, 1, column, 1), (rows, *[1] * axes)), factors, shift=0)

    total = term(axes, np.ones((1,) * (axes + 1)))
    for axis in reversed(range(axes)):  # z, y, x: only the last sum is full size
        numbers = grid[0].movedim(axes - 1 - axis, 0).reshape(size[-1 - axis], -1, axes)[:, 0, axis]
        total = b.emit(
            "ADD", total, term(axis, numbers.reshape([size[-1 - axis] if k == axes - axis else 1 for k in range(axes + 1)]))
        )
    return b.reshape(total, (*theta.shape[:2], *size[2:]))


def affine_grid_of_floats(b: Builder, theta: QTensor, size: Sequence[int], align_corners: bool, *, out: Result) -> QTensor:
    total = _affine_sum(b, b.logical(FloatTensor.of(b, theta).t), size, align_corners, 1.0)
    return b.from_order(total, [0, len(size) - 1, *range(1, len(size) - 1)], FP32)


@op(
    "aten.affine_grid_generator.default",
    quant=EACH_INPUT,
    floats=affine_grid_of_floats,
    samples=[
        Sample(I8(2, 2, 3), [2, 3, 5, 7], False),
        Sample(I8(1, 2, 3), [1, 3, 1, 6], True),
        Sample(I8(1, 3, 4), [1, 2, 3, 4, 5], False),
    ],
)
def affine_grid(b: Builder, theta: QTensor, size: Sequence[int], align_corners: bool, *, out: Result) -> QTensor:
    """Return theta[n] @ (x, y, 1) for each pixel's coordinates x and y in -1..1, or theta[n] @ (x, y, z, 1) for volumes.

    The products are summed in int32, and the sum is rounded once. TOSA MUL, ADD.
    """
    unit = 2.0 ** _COORDINATE[theta.qparams.dtype]
    codes = b.rescale(b.logical(theta), 1.0, input_zp=theta.qparams.zp, dtype="INT32")
    total = b.requantize(_affine_sum(b, codes, size, align_corners, unit), theta.qparams.step / unit, out.qparams)
    return b.from_order(total, [0, len(size) - 1, *range(1, len(size) - 1)], out.qparams)

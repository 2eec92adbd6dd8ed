"""Run integer TOSA graphs in NumPy. All operators of Ethos-U delegates are supported and follow TOSA 1.0.

Matrix products use BLAS and the narrowest float type in which partial sums are exact.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.tosa.ir import DTYPES, FLOATS, Graph, Op, Value

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]

_EXACT = {np.float32: 2.0**24, np.float64: 2.0**53}
_PATCH_ELEMENTS = 1 << 21  # maximum number of elements in a copy of convolution patches
_MOST_CHUNKS = 3  # partial float32 products; one float64 product is faster than more of them
_MOST_TURNS = 1 << 16  # maximum iterations of a loop


def run(graph: Graph, inputs: Sequence[Array], seen: Callable[[Op, Sequence[Array]], None] | None = None) -> list[Array]:
    """Return the outputs of a graph without float tensors.

    ``seen`` is called with each top-level operator and its results.

    Raises:
        IndexError: An index is out of range.
        ArithmeticError: A divisor, shift amount or iteration count is invalid.
    """
    arrays: dict[int, Array] = {id(value): array for value, array in zip(graph.inputs, inputs, strict=True)}
    last = {id(value): number for number, op in enumerate(graph.ops) for value in op.operands}
    last |= {id(value): len(graph.ops) for value in graph.outputs}

    def content(value: Value) -> Array:
        return arrays[id(value)] if value.data is None else np.asarray(value.data, DTYPES[value.dtype]).reshape(value.shape)

    for number, op in enumerate(graph.ops):
        results = results_of(op, [content(value) for value in op.operands])
        if seen is not None:
            seen(op, results)
        arrays.update((id(value), array) for value, array in zip(op.results, results, strict=True))
        for value in (*op.operands, *op.results):
            if last.get(id(value), -1) <= number:
                arrays.pop(id(value), None)
    return [content(value) for value in graph.outputs]


def results_of(op: Op, operands: Sequence[Array]) -> list[Array]:
    if op.name == "COND_IF":
        condition, *rest = operands
        return run(op.attrs["then_graph" if condition.item() else "else_graph"], rest)
    if op.name == "WHILE_LOOP":
        values = list(operands)
        for _ in range(_MOST_TURNS):
            if not run(op.attrs["cond_graph"], values)[0].item():
                return values
            values = run(op.attrs["body_graph"], values)
        raise OverflowError(f"WHILE_LOOP did not end within {_MOST_TURNS:,} iterations")
    assert op.result.dtype not in FLOATS, f"{op.name} of floats"
    result = MEANING[op.name](op.attrs, *operands)
    return [np.asarray(result).astype(DTYPES[op.result.dtype], copy=False).reshape(op.result.shape)]


def _number(attribute: Any) -> int:
    return int(np.asarray(attribute).item())


# --- products -----------------------------------------------------------------------------------------------------------


def _largest(x: Array) -> float:
    return max(float(x.max()), -float(x.min())) if x.size else 0.0


def _product(x: Array, weights: Array, largest: float) -> Array:
    sums = np.abs(weights, dtype=np.float64).sum(-2).max(initial=0) * largest
    dtype = _sum_dtype(float(sums))
    count = 1 if dtype is np.float64 else max(1, math.ceil(sums / _EXACT[np.float32]))
    edges = np.linspace(0, x.shape[-1], count + 1).astype(int)
    total: Array | None = None
    for start, stop in itertools.pairwise(edges.tolist()):
        part = weights[..., start:stop, :]
        exact = dtype if count == 1 or np.abs(part, dtype=np.float64).sum(-2).max() * largest < _EXACT[np.float32] else np.float64
        partial = np.matmul(x[..., start:stop].astype(exact, copy=False), part.astype(exact, copy=False)).astype(np.int64)
        total = partial if total is None else total + partial
    assert total is not None
    return total


def _sum_dtype(sums: float) -> type[np.floating[Any]]:
    return np.float32 if sums < _MOST_CHUNKS * _EXACT[np.float32] else np.float64


def _conv(a: Attrs, x: Array, weights: Array, bias: Array) -> Array:
    kernel = weights.shape[1:-1]
    pads = [(0, 0), *zip(a["pad"][::2], a["pad"][1::2], strict=True), (0, 0)]
    matrix = (weights.astype(np.int64) - _number(a["weight_zp"])).reshape(len(weights), -1).T
    centred = np.pad(x.astype(np.int32) - _number(a["input_zp"]), pads)
    largest = _largest(centred)
    dtype = _sum_dtype(float(np.abs(matrix).sum(0).max()) * largest)
    matrix, centred = matrix.astype(dtype), centred.astype(dtype)
    step = centred.strides
    sizes = [
        (extent - (k - 1) * d - 1) // s + 1
        for extent, k, s, d in zip(centred.shape[1:-1], kernel, a["stride"], a["dilation"], strict=True)
    ]
    shape = (len(x), *sizes, *kernel, x.shape[-1])
    strides = (
        step[0],
        *(s * b for s, b in zip(a["stride"], step[1:-1], strict=True)),
        *(d * b for d, b in zip(a["dilation"], step[1:-1], strict=True)),
        step[-1],
    )
    patches = np.lib.stride_tricks.as_strided(centred, shape, strides)
    out = np.empty((len(x), *sizes, len(weights)), np.int64)
    rows = max(1, _PATCH_ELEMENTS // max(1, math.prod(shape[2:])))
    for image in range(len(x)):
        for first in range(0, sizes[0], rows):
            block = patches[image, first : first + rows]
            products = _product(block.reshape(-1, matrix.shape[0]), matrix, largest)
            out[image, first : first + rows] = products.reshape(len(block), *sizes[1:], len(weights))
    return out + bias


def _depthwise(a: Attrs, x: Array, weights: Array, bias: Array) -> Array:
    kh, kw, c, m = weights.shape
    top, bottom, left, right = a["pad"]
    (sy, sx), (dy, dx) = a["stride"], a["dilation"]
    centred = np.pad(x.astype(np.int32) - _number(a["input_zp"]), ((0, 0), (top, bottom), (left, right), (0, 0)))
    factors = weights.astype(np.int64) - _number(a["weight_zp"])
    sums = float(np.abs(factors).sum((0, 1)).max()) * _largest(centred)
    dtype = np.float32 if sums < _EXACT[np.float32] else np.float64
    centred, factors = centred.astype(dtype), factors.astype(dtype)
    oh = (centred.shape[1] - (kh - 1) * dy - 1) // sy + 1
    ow = (centred.shape[2] - (kw - 1) * dx - 1) // sx + 1
    acc: Array = np.zeros((len(x), oh, ow, c, m), dtype)
    for y in range(kh):
        for i in range(kw):
            part = centred[:, y * dy : y * dy + (oh - 1) * sy + 1 : sy, i * dx : i * dx + (ow - 1) * sx + 1 : sx]
            acc += part[..., None] * factors[y, i]
    return acc.reshape(len(x), oh, ow, c * m).astype(np.int64) + bias


def _transpose_conv(a: Attrs, x: Array, weights: Array, bias: Array) -> Array:
    (n, h, w, _), (o, kh, kw, _) = x.shape, weights.shape
    top, bottom, left, right = a["out_pad"]
    sy, sx = a["stride"]
    centred = x.astype(np.int32) - _number(a["input_zp"])
    factors = weights.astype(np.int64) - _number(a["weight_zp"])
    largest = _largest(centred)
    padded_sums = np.zeros((n, (h - 1) * sy + kh, (w - 1) * sx + kw, o), np.int64)
    for y in range(kh):
        for i in range(kw):
            products = _product(centred.reshape(-1, x.shape[-1]), factors[:, y, i].T, largest)
            padded_sums[:, y : y + (h - 1) * sy + 1 : sy, i : i + (w - 1) * sx + 1 : sx] += products.reshape(n, h, w, o)
    positive = np.pad(padded_sums, ((0, 0), (max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0)), (0, 0)))
    rows = slice(max(-top, 0), positive.shape[1] - max(-bottom, 0))
    columns = slice(max(-left, 0), positive.shape[2] - max(-right, 0))
    return positive[:, rows, columns] + bias


def _matmul(a: Attrs, x: Array, y: Array) -> Array:
    x, y = x.astype(np.int64) - _number(a["a_zp"]), y.astype(np.int64) - _number(a["b_zp"])
    return _product(x, y, _largest(x))


# --- windows ------------------------------------------------------------------------------------------------------------


def _windows(a: Attrs, x: Array, fill: int) -> list[Array]:
    (kh, kw), (sy, sx) = a["kernel"], a["stride"]
    top, bottom, left, right = a["pad"]
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    oh, ow = (padded.shape[1] - kh) // sy + 1, (padded.shape[2] - kw) // sx + 1
    return [padded[:, y : y + (oh - 1) * sy + 1 : sy, i : i + (ow - 1) * sx + 1 : sx] for y in range(kh) for i in range(kw)]


def _avg_pool(a: Attrs, x: Array) -> Array:
    sums, counts = (
        functools.reduce(np.add, _windows(a, values, 0))
        for values in (x.astype(np.int64) - _number(a["input_zp"]), np.ones((1, *x.shape[1:3], 1), np.int64))
    )
    bits = np.array([int(count - 1).bit_length() for count in counts.ravel()], np.int64).reshape(counts.shape)
    multiplier = (((1 << 30) + 1) << bits) // counts  # reciprocal of the number of valid elements (TOSA 1.0, 1.9.3)
    shift = 30 + bits
    scaled = (sums * multiplier + (np.int64(1) << (shift - 1))) >> shift
    return _saturate(scaled + _number(a["output_zp"]), x.dtype)


def _max_pool(a: Attrs, x: Array) -> Array:
    first, *rest = _windows(a, x, np.iinfo(x.dtype).min)
    largest: Array = first.copy()
    for window in rest:
        np.maximum(largest, window, out=largest)
    return largest


def _reduce(name: str) -> Callable[..., Array]:
    return lambda a, x: np.asarray(getattr(x, name)(axis=a["axis"], keepdims=True))


def _resize(a: Attrs, x: Array) -> Array:
    (yn, yd, xn, xd), (oy, ox) = a["scale"], a["offset"]
    _, h, w, _ = x.shape
    border_y, border_x = a["border"]
    out_h, out_w = ((h - 1) * yn - oy + border_y) // yd + 1, ((w - 1) * xn - ox + border_x) // xd + 1

    def places(count: int, numerator: int, denominator: int, offset: int, extent: int) -> tuple[Array, Array, Array]:
        at = np.arange(count) * denominator + offset
        first = at // numerator
        return np.clip(first, 0, extent - 1), np.clip(first + 1, 0, extent - 1), at - first * numerator

    y0, y1, dy = places(out_h, yn, yd, oy, h)
    x0, x1, dx = places(out_w, xn, xd, ox, w)
    if a["mode"] != "BILINEAR":
        return x[:, np.where(dy * 2 >= yn, y1, y0)][:, :, np.where(dx * 2 >= xn, x1, x0)]
    wide = x.astype(np.int64)
    rows = wide[:, y0] * (yn - dy)[:, None, None] + wide[:, y1] * dy[:, None, None]
    result: Array = rows[:, :, x0] * (xn - dx)[:, None] + rows[:, :, x1] * dx[:, None]
    return result


# --- numbers ------------------------------------------------------------------------------------------------------------


def _saturate(x: Array, dtype: npt.DTypeLike) -> Array:
    info = np.iinfo(np.dtype(dtype))
    return np.clip(x, info.min, info.max)


def _rescale(a: Attrs, x: Array) -> Array:
    shape = (-1,) if a["per_channel"] else ()  # keeps tensors of rank 0
    multiplier, shift = (np.asarray(a[key], np.int64).reshape(shape) for key in ("multiplier", "shift"))
    if a["input_unsigned"]:
        x = x.view(f"u{x.dtype}")
    scaled: Array = np.array(x, np.int64)
    scaled -= _number(a["input_zp"])
    scaled *= multiplier
    scaled += np.int64(1) << (shift - 1)  # SINGLE_ROUND
    scaled >>= shift
    scaled += _number(a["output_zp"])
    dtype = np.dtype(DTYPES[a["dtype"]])
    if a["output_unsigned"]:
        unsigned = np.dtype(f"u{dtype}")
        return _saturate(scaled, unsigned).astype(unsigned).view(dtype)
    return _saturate(scaled, dtype).astype(dtype)


def _cast(a: Attrs, x: Array) -> Array:
    return x != 0 if a["dtype"] == "BOOL" else x.astype(DTYPES[a["dtype"]])


def _table(a: Attrs, x: Array, table: Array) -> Array:
    if x.dtype == np.int8:
        return np.take(table, x.astype(np.int32) + 128)
    at = x.astype(np.int32)
    index, fraction = (at + 32768) >> 7, at & 127  # 513 entries, interpolated
    wide = table.astype(np.int32)
    base = wide[index]
    return np.asarray((base << 7) + (wide[index + 1] - base) * fraction)


def _mul(a: Attrs, x: Array, y: Array) -> Array:
    shift = _number(a["shift"])
    product = x.astype(np.int64) * y
    return (product + (1 << (shift - 1))) >> shift if shift else product


def _intdiv(a: Attrs, x: Array, y: Array) -> Array:
    if not np.all(y):
        raise ZeroDivisionError("INTDIV divides by 0")
    wide = x.astype(np.int64)
    return np.asarray(np.sign(wide) * np.sign(y) * (np.abs(wide) // np.abs(y.astype(np.int64))))


def _check_shifts(amounts: Array, most: int) -> None:
    if amounts.size and not 0 <= amounts.min() <= amounts.max() <= most:
        raise ArithmeticError(f"expected shift amounts in 0..{most}, got {amounts.min()}..{amounts.max()}")


def _logical_left_shift(a: Attrs, x: Array, y: Array) -> Array:
    _check_shifts(y, 31)
    return np.asarray(x << y)


def _arithmetic_right_shift(a: Attrs, x: Array, y: Array) -> Array:
    _check_shifts(y, x.itemsize * 8 - 1)
    result = x >> y
    if a["round"]:
        result = result + ((y > 0) & (((x >> np.maximum(y - 1, 0)) & 1) == 1)).astype(x.dtype)
    return np.asarray(result)


def _logical_right_shift(a: Attrs, x: Array, y: Array) -> Array:
    _check_shifts(y, 31)
    unsigned = x.view(f"u{x.dtype}")
    return np.asarray(unsigned >> y.astype(unsigned.dtype)).view(x.dtype)


def _negate(a: Attrs, x: Array) -> Array:
    result = _number(a["output_zp"]) - (x.astype(np.int64) - _number(a["input_zp"]))
    return _saturate(result, x.dtype)


def _clz(a: Attrs, x: Array) -> Array:
    unsigned = x.view(np.uint32).astype(np.float64)
    return np.where(unsigned > 0, 31 - np.floor(np.log2(np.maximum(unsigned, 1))), 32)


# --- moves --------------------------------------------------------------------------------------------------------------


def _slice(a: Attrs, x: Array) -> Array:
    return x[tuple(slice(start, start + size) for start, size in zip(a["start"], a["size"], strict=True))]


def _pad(a: Attrs, x: Array) -> Array:
    pads = np.asarray(a["padding"]).reshape(-1, 2)
    return np.pad(x, pads, constant_values=np.asarray(a["pad_const"]).item())


def _check_indices(indices: Array, extent: int) -> None:
    if indices.size and not 0 <= indices.min() <= indices.max() < extent:
        raise IndexError(f"expected indices in 0..{extent - 1}, got {indices.min()}..{indices.max()}")


def _gather(a: Attrs, values: Array, indices: Array) -> Array:
    _check_indices(indices, values.shape[1])
    return np.take_along_axis(values, indices[..., None].astype(np.int64), 1) if len(values) > 1 else values[:, indices[0]]


def _scatter(a: Attrs, values: Array, indices: Array, updates: Array) -> Array:
    _check_indices(indices, values.shape[1])
    result = values.copy()
    result[np.arange(len(values))[:, None], indices] = updates
    return result


#: Operator -> function of its attributes and operands. The opset defines the shape and dtype of the result.
MEANING: Mapping[str, Callable[..., Array]] = {
    "CONV2D": _conv,
    "CONV3D": _conv,
    "DEPTHWISE_CONV2D": _depthwise,
    "TRANSPOSE_CONV2D": _transpose_conv,
    "MATMUL": _matmul,
    "AVG_POOL2D": _avg_pool,
    "MAX_POOL2D": _max_pool,
    "RESIZE": _resize,
    "REDUCE_SUM": lambda a, x: x.sum(axis=a["axis"], keepdims=True, dtype=np.int64),
    "REDUCE_MAX": _reduce("max"),
    "REDUCE_MIN": _reduce("min"),
    "REDUCE_ALL": _reduce("all"),
    "REDUCE_ANY": _reduce("any"),
    "ARGMAX": lambda a, x: x.argmax(axis=a["axis"]),
    "RESCALE": _rescale,
    "CAST": _cast,
    "CLAMP": lambda a, x: np.clip(x, a["min_val"], a["max_val"]).astype(x.dtype, copy=False),
    "TABLE": _table,
    "ADD": lambda a, x, y: x + y,
    "SUB": lambda a, x, y: x - y,
    "MUL": _mul,
    "INTDIV": _intdiv,
    "MAXIMUM": lambda a, x, y: np.maximum(x, y),
    "MINIMUM": lambda a, x, y: np.minimum(x, y),
    "ABS": lambda a, x: np.abs(x),
    "NEGATE": _negate,
    "CLZ": _clz,
    "LOGICAL_LEFT_SHIFT": _logical_left_shift,
    "LOGICAL_RIGHT_SHIFT": _logical_right_shift,
    "ARITHMETIC_RIGHT_SHIFT": _arithmetic_right_shift,
    "BITWISE_AND": lambda a, x, y: x & y,
    "BITWISE_OR": lambda a, x, y: x | y,
    "BITWISE_XOR": lambda a, x, y: x ^ y,
    "BITWISE_NOT": lambda a, x: ~x,
    "LOGICAL_AND": lambda a, x, y: x & y,
    "LOGICAL_OR": lambda a, x, y: x | y,
    "LOGICAL_XOR": lambda a, x, y: x ^ y,
    "LOGICAL_NOT": lambda a, x: ~x,
    "EQUAL": lambda a, x, y: x == y,
    "GREATER": lambda a, x, y: x > y,
    "GREATER_EQUAL": lambda a, x, y: x >= y,
    "SELECT": lambda a, condition, x, y: np.where(condition, x, y),
    "IDENTITY": lambda a, x: x,
    "RESHAPE": lambda a, x: x.reshape(a["shape"]),
    "TRANSPOSE": lambda a, x: x.transpose(a["perms"]),
    "CONCAT": lambda a, *xs: np.concatenate(xs, a["axis"]),
    "SLICE": _slice,
    "PAD": _pad,
    "TILE": lambda a, x: np.tile(x, a["multiples"]),
    "REVERSE": lambda a, x: np.flip(x, a["axis"]),
    "GATHER": _gather,
    "SCATTER": _scatter,
}

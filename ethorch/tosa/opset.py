"""The TOSA 1.0 operators, with their operands, attributes, dtypes, result shapes and features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ethorch.tosa.ir import FLOATS, REGIONS, Value

Attrs = Mapping[str, Any]
Results = list[tuple[tuple[int, ...], str]]
Infer = Callable[[Sequence[Value], Attrs], Results]
Features = Callable[[Sequence[Value], Attrs, Results], dict[str, int]]


@dataclass(frozen=True)
class Row:
    """The TOSA 1.0 definition of one operator.

    Attributes:
        operands: Names of the operands, or None if any number of operands is allowed.
        const_operands: Operands that are constant tensors in TOSA but attributes in graphs, with the serialized dtype:
            ``SHAPE``, a dtype, ``@i`` (dtype of operand i), ``@out`` (dtype of the result) or ``@scale`` (INT16 if operand 0 is
            INT48, INT32 otherwise).
        features: Function that computes the properties that a target may limit, e.g. ``CONV2D.kernel_h``.
    """

    name: str
    operands: tuple[str, ...] | None
    infer: Infer
    const_operands: Mapping[str, str] = field(default_factory=dict)
    attrs: tuple[str, ...] = ()
    dtypes: frozenset[str] | None = None  # dtypes of operand 0; None allows all dtypes
    features: Features | None = None
    extension: str = ""  # extension of the TOSA 1.0 profile, "" for the base profiles


OPSET: dict[str, Row] = {}


def _row(name: str, operands: str | None, infer: Infer, **rest: Any) -> None:
    if "dtypes" in rest:
        rest["dtypes"] = frozenset(rest["dtypes"].split())
    rest["attrs"] = tuple(rest.get("attrs", "").split())
    OPSET[name] = Row(name, None if operands is None else tuple(operands.split()), infer, **rest)


# --- result shapes ----------------------------------------------------------------------------------------------------


def _acc(dtype: str) -> str:
    return {"INT8": "INT32", "INT16": "INT48"}.get(dtype, dtype)


def _same(values: Sequence[Value], attrs: Attrs) -> Results:
    return [(values[0].shape, values[0].dtype)]


def _broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    ranks = {len(shape) for shape in shapes}
    assert len(ranks) == 1, f"TOSA broadcasts only equal ranks, got {shapes}"
    result = []
    for extents in zip(*shapes, strict=True):
        wide = {extent for extent in extents if extent != 1}
        assert len(wide) <= 1, f"shapes {shapes} do not broadcast"
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _broadcast(values: Sequence[Value], attrs: Attrs) -> Results:
    assert len({value.dtype for value in values}) == 1, f"operand dtypes differ: {values}"
    return [(_broadcast_shape(*(value.shape for value in values)), values[0].dtype)]


def _compare(values: Sequence[Value], attrs: Attrs) -> Results:
    return [(_broadcast(values, attrs)[0][0], "BOOL")]


def _mul(values: Sequence[Value], attrs: Attrs) -> Results:
    shape, dtype = _broadcast(values, attrs)[0]
    return [(shape, "INT32" if dtype in ("INT8", "INT16") else dtype)]


def _select(values: Sequence[Value], attrs: Attrs) -> Results:
    return [(_broadcast_shape(*(value.shape for value in values)), values[1].dtype)]


def _window(extent: int, before: int, after: int, kernel: int, stride: int, dilation: int = 1) -> int:
    span = extent + before + after - 1 - (kernel - 1) * dilation
    assert span % stride == 0, f"inexact division: extent {extent} pad {before}+{after} kernel {kernel} stride {stride}"
    return span // stride + 1


def _conv2d(values: Sequence[Value], attrs: Attrs) -> Results:
    (n, h, w, c), (o, kh, kw, i) = values[0].shape, values[1].shape
    assert c == i, f"input has {c} channels, weight {i}"
    top, bottom, left, right = attrs["pad"]
    (sy, sx), (dy, dx) = attrs["stride"], attrs["dilation"]
    return [((n, _window(h, top, bottom, kh, sy, dy), _window(w, left, right, kw, sx, dx), o), _acc(values[0].dtype))]


def _conv3d(values: Sequence[Value], attrs: Attrs) -> Results:
    n, *extents, c = values[0].shape
    o, *kernel, i = values[1].shape
    assert c == i, f"input has {c} channels, weight {i}"
    pads = [attrs["pad"][k : k + 2] for k in (0, 2, 4)]
    sizes = [
        _window(e, p[0], p[1], k, s, d)
        for e, p, k, s, d in zip(extents, pads, kernel, attrs["stride"], attrs["dilation"], strict=True)
    ]
    return [((n, *sizes, o), _acc(values[0].dtype))]


def _depthwise(values: Sequence[Value], attrs: Attrs) -> Results:
    (n, h, w, c), (kh, kw, i, m) = values[0].shape, values[1].shape
    assert c == i, f"input has {c} channels, weight {i}"
    top, bottom, left, right = attrs["pad"]
    (sy, sx), (dy, dx) = attrs["stride"], attrs["dilation"]
    shape = (n, _window(h, top, bottom, kh, sy, dy), _window(w, left, right, kw, sx, dx), c * m)
    return [(shape, _acc(values[0].dtype))]


def _transpose_conv2d(values: Sequence[Value], attrs: Attrs) -> Results:
    (n, h, w, c), (o, kh, kw, i) = values[0].shape, values[1].shape
    assert c == i, f"input has {c} channels, weight {i}"
    top, bottom, left, right = attrs["out_pad"]
    sy, sx = attrs["stride"]
    shape = (n, (h - 1) * sy + kh + top + bottom, (w - 1) * sx + kw + left + right, o)
    return [(shape, _acc(values[0].dtype))]


def _pool(values: Sequence[Value], attrs: Attrs) -> Results:
    n, h, w, c = values[0].shape
    (kh, kw), (sy, sx) = attrs["kernel"], attrs["stride"]
    top, bottom, left, right = attrs["pad"]
    return [((n, _window(h, top, bottom, kh, sy), _window(w, left, right, kw, sx), c), values[0].dtype)]


def _matmul(values: Sequence[Value], attrs: Attrs) -> Results:
    (n, h, c), (n2, c2, w) = values[0].shape, values[1].shape
    assert (n, c) == (n2, c2), f"MATMUL of {values[0]} and {values[1]}"
    return [((n, h, w), "FP32" if values[0].dtype in FLOATS else _acc(values[0].dtype))]  # floats accumulate in FP32


def _reduce(values: Sequence[Value], attrs: Attrs) -> Results:
    shape = list(values[0].shape)
    shape[attrs["axis"]] = 1
    return [(tuple(shape), values[0].dtype)]


def _argmax(values: Sequence[Value], attrs: Attrs) -> Results:
    shape = list(values[0].shape)
    del shape[attrs["axis"]]
    return [(tuple(shape), "INT32")]


def _reshape(values: Sequence[Value], attrs: Attrs) -> Results:
    assert math.prod(attrs["shape"]) == math.prod(values[0].shape), f"RESHAPE of {values[0]} to {attrs['shape']}"
    return [(tuple(attrs["shape"]), values[0].dtype)]


def _transpose(values: Sequence[Value], attrs: Attrs) -> Results:
    assert sorted(attrs["perms"]) == list(range(values[0].rank)), f"perms {attrs['perms']} of {values[0]}"
    return [(tuple(values[0].shape[axis] for axis in attrs["perms"]), values[0].dtype)]


def _concat(values: Sequence[Value], attrs: Attrs) -> Results:
    axis, shape = attrs["axis"], list(values[0].shape)
    for value in values[1:]:
        rest = [(a, b) for k, (a, b) in enumerate(zip(shape, value.shape, strict=True)) if k != axis]
        assert all(a == b for a, b in rest) and value.dtype == values[0].dtype, f"CONCAT along {axis} of {values}"
    shape[axis] = sum(value.shape[axis] for value in values)
    return [(tuple(shape), values[0].dtype)]


def _slice(values: Sequence[Value], attrs: Attrs) -> Results:
    for extent, start, size in zip(values[0].shape, attrs["start"], attrs["size"], strict=True):
        assert start >= 0 and size > 0 and start + size <= extent, f"SLICE {attrs} of {values[0]}"
    return [(tuple(attrs["size"]), values[0].dtype)]


def _pad(values: Sequence[Value], attrs: Attrs) -> Results:
    pads = attrs["padding"]
    assert len(pads) == 2 * values[0].rank, f"PAD {pads} of {values[0]}"
    return [(tuple(e + pads[2 * k] + pads[2 * k + 1] for k, e in enumerate(values[0].shape)), values[0].dtype)]


def _tile(values: Sequence[Value], attrs: Attrs) -> Results:
    return [(tuple(e * m for e, m in zip(values[0].shape, attrs["multiples"], strict=True)), values[0].dtype)]


def _table(values: Sequence[Value], attrs: Attrs) -> Results:
    return [(values[0].shape, {"INT8": "INT8", "INT16": "INT32"}[values[0].dtype])]


def _to_dtype(values: Sequence[Value], attrs: Attrs) -> Results:
    return [(values[0].shape, attrs["dtype"])]


def _gather(values: Sequence[Value], attrs: Attrs) -> Results:
    (n, _, c), (n2, w) = values[0].shape, values[1].shape
    assert n == n2, f"GATHER of {values}"
    return [((n, w, c), values[0].dtype)]


def _scatter(values: Sequence[Value], attrs: Attrs) -> Results:
    (n, _, c), (n2, w), updates = values[0].shape, values[1].shape, values[2]
    assert n == n2 and updates.shape == (n, w, c) and updates.dtype == values[0].dtype, f"SCATTER of {values}"
    return [(values[0].shape, values[0].dtype)]


def _resize(values: Sequence[Value], attrs: Attrs) -> Results:
    n, h, w, c = values[0].shape
    sizes = []
    for extent, k in ((h, 0), (w, 1)):
        num, den = attrs["scale"][2 * k : 2 * k + 2]
        span = (extent - 1) * num - attrs["offset"][k] + attrs["border"][k]
        assert span % den == 0, f"RESIZE {dict(attrs)} of {values[0]}"
        sizes.append(span // den + 1)
    wide = {"INT8": "INT32", "INT16": "INT48"}
    dtype = values[0].dtype
    return [((n, *sizes, c), wide.get(dtype, dtype) if attrs["mode"] == "BILINEAR" else dtype)]


def _ends(values: Sequence[Value]) -> Results:
    return [(value.shape, value.dtype) for value in values]


def _is_condition(shape: tuple[int, ...], dtype: str) -> bool:
    return dtype == "BOOL" and math.prod(shape) == 1


def _cond_if(values: Sequence[Value], attrs: Attrs) -> Results:
    condition, *operands = values
    assert _is_condition(condition.shape, condition.dtype), f"COND_IF on {condition}"
    branches = [attrs[key] for key in REGIONS["COND_IF"]]
    for branch in branches:
        assert _ends(branch.inputs) == _ends(operands), f"COND_IF: region {branch.name} has {branch.inputs}, got {operands}"
    assert _ends(branches[0].outputs) == _ends(branches[1].outputs), f"COND_IF: its regions return {[b.outputs for b in branches]}"
    return _ends(branches[0].outputs)


def _while_loop(values: Sequence[Value], attrs: Attrs) -> Results:
    condition, body = (attrs[key] for key in REGIONS["WHILE_LOOP"])
    for name, region_values in (("condition", condition.inputs), ("body", body.inputs), ("body's result", body.outputs)):
        assert _ends(region_values) == _ends(values), f"WHILE_LOOP: the {name} has {region_values}, got {values}"
    assert [_is_condition(v.shape, v.dtype) for v in condition.outputs] == [True], f"WHILE_LOOP on {condition.outputs}"
    return _ends(values)


# --- features that targets limit ---------------------------------------------------------------------------------------


def _conv_features(values: Sequence[Value], attrs: Attrs, results: Results, kernel_axes: tuple[int, int]) -> dict[str, int]:
    kh, kw = (values[1].shape[axis] for axis in kernel_axes)
    (dy, dx), (sy, sx) = attrs.get("dilation", (1, 1)), attrs["stride"]
    height, width = (kh - 1) * dy + 1, (kw - 1) * dx + 1
    return {
        "batch": values[0].shape[0],
        "pictures": values[0].shape[0] if kh * kw > 1 or max(sy, sx) > 1 else 1,
        "kernel_h": height,
        "kernel_w": width,
        "kernel_area": height * width,
        "stride": max(sy, sx),
        "stride_h": sy,
        "stride_w": sx,
        "dilation": max(dy, dx),
        "ifm_c": values[0].shape[3],
        **_of_wide_stride(attrs, max(dy, dx)),
    }


def _of_wide_stride(attrs: Attrs, dilation: int = 1) -> dict[str, int]:
    # Strides above 3 exceed the limit of the NPU.
    wide = max(attrs["stride"]) > 3
    return {
        "padding_of_wide_stride": max(attrs.get("pad", (0,))) if wide else 0,
        "dilation_of_wide_stride": dilation if wide else 1,
    }


def _extent_of_padded_stride(shape: tuple[int, ...], attrs: Attrs) -> int:
    return max(shape[1 + k] if attrs["stride"][k] > 1 and attrs["pad"][2 * k + 1] else 1 for k in (0, 1))


def _pool_features(values: Sequence[Value], attrs: Attrs, results: Results) -> dict[str, int]:
    (kh, kw), (sy, sx) = attrs["kernel"], attrs["stride"]
    return {
        "batch": values[0].shape[0],
        "pictures": values[0].shape[0],
        "kernel_h": kh,
        "kernel_w": kw,
        "kernel_area": kh * kw,
        "stride": max(sy, sx),
        "padded_kernel": max(kh, kw) if any(attrs["pad"]) else 1,
        "extent_of_padded_stride": _extent_of_padded_stride(values[0].shape, attrs),
        "ifm_c": values[0].shape[3],
        **_of_wide_stride(attrs),
    }


def _reduce_features(values: Sequence[Value], attrs: Attrs, results: Results) -> dict[str, int]:
    axis, shape = attrs["axis"], values[0].shape
    inner = math.prod(shape[axis + 1 :])
    outer = math.prod(shape[:axis]) if inner > 1 else 1  # a reduction along channels needs no transpose
    return {"extent": shape[axis], "outer": outer, "inner": inner}


def _shape_features(values: Sequence[Value], attrs: Attrs, results: Results) -> dict[str, int]:
    return {"rank": len(results[0][0]), "extent": max(results[0][0], default=1)}


# --- the rows -----------------------------------------------------------------------------------------------------------

_ZERO_POINTS = {"input_zp": "@0", "weight_zp": "@1"}
_ANY_FLOAT = "FP32 FP16 BF16"

for _name, _infer, _axes in (
    ("CONV2D", _conv2d, (1, 2)),
    ("DEPTHWISE_CONV2D", _depthwise, (0, 1)),
    ("CONV3D", _conv3d, None),
):
    _row(
        _name,
        "input weight bias",
        _infer,
        const_operands=_ZERO_POINTS,
        attrs="pad stride dilation",
        dtypes=f"INT8 INT16 {_ANY_FLOAT}",
        features=None if _axes is None else lambda v, a, r, axes=_axes: _conv_features(v, a, r, axes),
    )
_row(
    "TRANSPOSE_CONV2D",
    "input weight bias",
    _transpose_conv2d,
    const_operands=_ZERO_POINTS,
    attrs="out_pad stride",
    dtypes=f"INT8 INT16 {_ANY_FLOAT}",
    features=lambda v, a, r: _conv_features(v, a, r, (1, 2)),
)
_row(
    "MATMUL",
    "a b",
    _matmul,
    const_operands={"a_zp": "@0", "b_zp": "@1"},
    dtypes=f"INT8 INT16 {_ANY_FLOAT}",
    features=lambda v, a, r: {"longest_axis": max(*v[0].shape, *v[1].shape), "pictures": v[0].shape[0]},
)
_row(
    "AVG_POOL2D",
    "input",
    _pool,
    const_operands={"input_zp": "@0", "output_zp": "@out"},
    attrs="kernel stride pad",
    dtypes=f"INT8 INT16 {_ANY_FLOAT}",
    features=_pool_features,
)
_row("MAX_POOL2D", "input", _pool, attrs="kernel stride pad", dtypes=f"INT8 INT16 {_ANY_FLOAT}", features=_pool_features)
_row(
    "RESCALE",
    "input",
    _to_dtype,
    const_operands={"multiplier": "@scale", "shift": "INT8", "input_zp": "@0", "output_zp": "@out"},
    attrs="dtype per_channel input_unsigned output_unsigned",
    dtypes="INT8 INT16 INT32 INT48",
)
_SHIFT = {"multiplier": (1 << 30,), "shift": (30,), "dtype": "INT8", "per_channel": False}
#: Attributes of a RESCALE by 1 to INT8.
BY_ONE = {**_SHIFT, "input_zp": 0, "output_zp": 0, "input_unsigned": False, "output_unsigned": False}
#: Attributes of the RESCALE that subtracts 128 from uint8, and of the RESCALE that adds 128 to int8. TOSA 1.0 has no unsigned
#: dtype, but unsigned zero points are 0..255.
FROM_UNSIGNED = {**_SHIFT, "input_zp": 0, "output_zp": -128, "input_unsigned": True, "output_unsigned": False}
TO_UNSIGNED = {**_SHIFT, "input_zp": -128, "output_zp": 0, "input_unsigned": False, "output_unsigned": True}
#: Attributes of a convolution with a 1x1 kernel.
KERNEL_1X1 = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "input_zp": 0, "weight_zp": 0}
_row("CAST", "input", _to_dtype, attrs="dtype")
_row("CLAMP", "input", _same, attrs="min_val max_val", dtypes=f"INT8 INT16 {_ANY_FLOAT}")
_row("TABLE", "input table", _table, dtypes="INT8 INT16")
for _name in (
    "ADD",
    "SUB",
    "INTDIV",
    "LOGICAL_LEFT_SHIFT",
    "LOGICAL_RIGHT_SHIFT",
    "POW",
    "MAXIMUM",
    "MINIMUM",
    "BITWISE_AND",
    "BITWISE_OR",
    "BITWISE_XOR",
    "LOGICAL_AND",
    "LOGICAL_OR",
    "LOGICAL_XOR",
):
    _row(_name, "input1 input2", _broadcast)
_row(
    "ARITHMETIC_RIGHT_SHIFT",
    "input1 input2",
    _broadcast,
    attrs="round",
    dtypes="INT8 INT16 INT32",
    features=lambda v, a, r: {"rounds": int(a["round"])},
)
_row("MUL", "input1 input2", _mul, const_operands={"shift": "INT8"})
for _name in ("EQUAL", "GREATER", "GREATER_EQUAL"):
    _row(_name, "input1 input2", _compare)
for _name in (
    "ABS",
    "BITWISE_NOT",
    "CEIL",
    "CLZ",
    "COS",
    "ERF",
    "EXP",
    "FLOOR",
    "IDENTITY",
    "LOG",
    "LOGICAL_NOT",
    "RECIPROCAL",
    "RSQRT",
    "SIGMOID",
    "SIN",
    "TANH",
):
    _row(_name, "input", _same)
_row("NEGATE", "input", _same, const_operands={"input_zp": "@0", "output_zp": "@out"})
_row("SELECT", "condition on_true on_false", _select)
for _name in ("REDUCE_SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PRODUCT", "REDUCE_ALL", "REDUCE_ANY"):
    _row(_name, "input", _reduce, attrs="axis", features=_reduce_features)
_row(
    "ARGMAX",
    "input",
    _argmax,
    attrs="axis",
    dtypes=f"INT8 INT16 {_ANY_FLOAT}",
    features=lambda v, a, r: {"extent": v[0].shape[a["axis"]], "others": math.prod(r[0][0])},
)
_row("RESHAPE", "input", _reshape, const_operands={"shape": "SHAPE"})
_row("TRANSPOSE", "input", _transpose, attrs="perms", features=_shape_features)
_row("CONCAT", None, _concat, attrs="axis", features=_shape_features)
_row("SLICE", "input", _slice, const_operands={"start": "SHAPE", "size": "SHAPE"}, features=_shape_features)
_row("PAD", "input", _pad, const_operands={"padding": "SHAPE", "pad_const": "@0"}, features=_shape_features)
_row("TILE", "input", _tile, const_operands={"multiples": "SHAPE"}, features=_shape_features)
_row("REVERSE", "input", _same, attrs="axis", features=_reduce_features)
_row("GATHER", "values indices", _gather)
_row("SCATTER", "values_in indices input", _scatter)
_row(
    "RESIZE",
    "input",
    _resize,
    const_operands={"scale": "SHAPE", "offset": "SHAPE", "border": "SHAPE"},
    attrs="mode",
    features=lambda v, a, r: {"batch": v[0].shape[0]},
)
_row("COND_IF", None, _cond_if, attrs="then_graph else_graph", dtypes="BOOL", extension="cf")
_row("WHILE_LOOP", None, _while_loop, attrs="cond_graph body_graph", extension="cf")

"""Products of two activations."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FP32, FloatTensor
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.quant_rules import QuantRule
from ethorch.lower.ops.samples import I8, Sample, W
from ethorch.lower.ops.spec import composite, op
from ethorch.support.errors import Reason
from ethorch.targets.tuning import Tuning
from ethorch.tosa.ir import Value

aten = torch.ops.aten

#: Longest row for which a stored y[n].T is not transposed, because the NPU reads rows repeatedly.
_LONGEST_TURNED = 256


def _multiply(b: Builder, x: QTensor, y: QTensor, factor: float, out: QParams) -> QTensor:
    # - Few rows, if the NPU processes columns one by one or y is stored as y[n].T (e.g. cached keys): the transpose of
    #   y[n].T @ x[n].T is computed.
    # - int8, or an NPU that multiplies int16: one MATMUL is exact in int32 (int48 for int16).
    # - int16 on other NPUs: the four products of ``_halves`` are added in int32.
    step, dims = factor * x.qparams.step * y.qparams.step, ((0,), (1,), (2,))
    rows, columns = x.shape[1], y.shape[2]
    stored = b.tuning.turns_stored_transposes and y.dims[2][:1] < y.dims[1][:1]
    if has_many_columns(b.tuning, rows, columns) or (stored and columns >= 16 * rows and x.shape[2] <= _LONGEST_TURNED):
        turned = _multiply(b, _transpose(y), _transpose(x), factor, out)
        return _transpose(turned)
    row = b.limits.get("MATMUL")
    if row is None or row.dtypes is None or "INT16" in row.dtypes or {x.value.dtype, y.value.dtype} != {"INT16"}:
        acc = b.emit("MATMUL", b.logical(x), b.logical(y), a_zp=x.qparams.zp, b_zp=y.qparams.zp)
        return QTensor(b.requantize(acc, step, out), dims, out)
    (x_high, x_low), (y_high, y_low) = (_halves(b, b.logical(value)) for value in (x, y))
    unit = max(out.step / 128, x.shape[2] * step)  # so that the sum stays below 2**31, because products have 30 bits
    middle = b.emit("ADD", b.emit("MATMUL", x_high, y_low, a_zp=0, b_zp=-128), b.emit("MATMUL", x_low, y_high, a_zp=-128, b_zp=0))
    parts = (
        (b.emit("MATMUL", x_high, y_high, a_zp=0, b_zp=0), 65536),
        (middle, 256),
        (b.emit("MATMUL", x_low, y_low, a_zp=-128, b_zp=-128), 1),
    )
    high, between, low = (b.rescale(acc, weight * step / unit, dtype="INT32") for acc, weight in parts)
    total = b.emit("ADD", b.emit("ADD", low, between), high)
    return QTensor(b.requantize(total, unit, out), dims, out)


def has_many_columns(tuning: Tuning, rows: int, columns: int) -> bool:
    """Return True if the NPU processes columns one by one, and there are so many that the transposed product is faster."""
    fewest = tuning.fewest_columns_turned
    return fewest is not None and columns >= max(fewest, 16 * rows)


def _transpose(x: QTensor) -> QTensor:
    return QTensor(x.value, (x.dims[0], x.dims[2], x.dims[1]), x.q)


def _halves(b: Builder, value: Value) -> tuple[Value, Value]:

    def subtract(value: Value, subtrahend: Value) -> Value:
        return b.emit("SUB", b.rescale(value, 1.0, dtype="INT32"), subtrahend)

    half = b.const_like(value, 128)
    high = b.rescale(subtract(value, half), 1 / 256, dtype="INT8")
    return high, b.rescale(subtract(value, b.rescale(high, 256.0, dtype="INT32")), 1.0, output_zp=-128, dtype="INT8")


def check_bmm(x: Any, y: Any) -> Reason | None:
    if not (isinstance(x, QTensor) and isinstance(y, QTensor)):
        return Reason(
            "matmul.operand",
            "expected two quantized operands, got a float operand",
            "Quantize the module that contains the operator.",
        )
    return None


@op(
    "aten.bmm.default",
    quant=QuantRule(factors=(0, 1)),
    check=check_bmm,
    samples=[
        Sample(I8(2, 5, 16), I8(2, 16, 7, low=-1.0, high=2.0)),
        Sample(I8(1, 1, 9), I8(1, 9, 4)),
        Sample(I8(3, 8, 4), I8(3, 4, 1)),
    ],
)
def bmm(b: Builder, x: QTensor, y: QTensor, *, out: Result) -> QTensor:
    """Return x[n] @ y[n] for each n: int8[N,H,C], int8[N,C,W] -> int8[N,H,W], computed in int32 and rounded once. TOSA MATMUL.

    For int16, the product is exact in int48. If MATMUL supports only int8, matrix products of high and low bytes are added.
    """
    return _multiply(b, x, y, 1.0, out.qparams)


def is_parameter(x: Any) -> bool:
    return isinstance(x, Node) and x.op == "get_attr"


def _product(s: AtenBuilder, x: Node, y: Node, bias: Node | None = None) -> Node:
    if is_parameter(y):
        return s(aten.linear.default, x, s.transpose_parameter(y), bias)
    rows = math.prod(shape_of(x)[:-1])
    flat = s(aten.reshape.default, x, [1, rows, shape_of(x)[-1]])
    total = s(aten.bmm.default, flat, s(aten.unsqueeze.default, y, 0))
    total = s(aten.reshape.default, total, [*shape_of(x)[:-1], shape_of(y)[1]])
    return total if bias is None else s(aten.add.Tensor, total, bias)


@composite("aten.mm.default", samples=[Sample(I8(6, 9), I8(9, 5)), Sample(I8(6, 9), W(9, 5))])
def mm(s: AtenBuilder, x: Node, y: Node) -> Any:
    """Return x @ y: int8[H,C], int8[C,W] -> int8[H,W], decomposed into a linear layer if y is a parameter, or a bmm otherwise."""
    return _product(s, x, y)


@composite(
    "aten.matmul.default",
    samples=[
        Sample(I8(6, 9), I8(9, 5)),
        Sample(I8(2, 3, 5, 8), I8(2, 3, 8, 6)),
        Sample(I8(2, 3, 5, 8), I8(8, 6)),
        Sample(I8(4, 8), I8(8)),
        Sample(I8(8), I8(8, 4)),
        Sample(I8(2, 1, 5, 8), I8(3, 8, 6)),
        Sample(I8(2, 5, 8), W(8, 6)),
        Sample(I8(1, 4, 7), I8(5, 7, 3)),
    ],
)
def matmul(s: AtenBuilder, x: Node, y: Node) -> Any:
    """Return x @ y with PyTorch's broadcasting.

    If y is a single matrix, one product multiplies all rows of x by it. Otherwise, the batch dims of x and y are broadcast, and one
    bmm is used.
    """
    xs, ys = shape_of(x), shape_of(y)
    if len(xs) == 1:
        matrix = matmul(s, s(aten.unsqueeze.default, x, 0), y)
        return s(aten.squeeze.dim, matrix, -2 if len(ys) > 1 else 0)
    if len(ys) == 1:
        return s(aten.squeeze.dim, matmul(s, x, s(aten.unsqueeze.default, y, 1)), -1)
    if len(ys) == 2 or (math.prod(ys[:-2]) == 1 and len(ys) <= len(xs)):
        return _product(s, x, y if len(ys) == 2 else s(aten.reshape.default, y, list(ys[-2:])))
    batch = torch.broadcast_shapes(xs[:-2], ys[:-2])
    flat = []
    for operand, shape in ((x, xs), (y, ys)):
        if shape[:-2] != batch:
            operand = s(aten.expand.default, operand, [*batch, *shape[-2:]])
        flat.append(operand if len(batch) == 1 else s(aten.reshape.default, operand, [math.prod(batch), *shape[-2:]]))
    matrix = s(aten.bmm.default, *flat)
    return matrix if len(batch) == 1 else s(aten.reshape.default, matrix, [*batch, xs[-2], ys[-1]])


def check_baddbmm(bias: Any, x: Any, y: Any, beta: float = 1, alpha: float = 1) -> Reason | None:
    if beta != 0 or alpha <= 0:
        text = f"expected beta=0 and alpha > 0, got beta={beta} and alpha={alpha}"
        return Reason(
            "baddbmm.factors", text, "Use torch.bmm, torch.mul and torch.add, or quantize the model with EthosUQuantizer."
        )
    return None


def decompose_baddbmm(s: AtenBuilder, bias: Node, x: Node, y: Node, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta == 0 and alpha > 0:
        return None
    total = s(aten.bmm.default, x, y)
    total = total if alpha == 1 else s(aten.mul.Scalar, total, alpha)
    if beta == 0:
        return total
    return s(aten.add.Tensor, total, bias if beta == 1 else s(aten.mul.Scalar, bias, beta))


def baddbmm_of_floats(
    b: Builder, bias: Any, x: QTensor, y: QTensor, *, out: Result, beta: float = 1, alpha: float = 1
) -> FloatTensor:
    product = b.emit("MATMUL", b.logical(x), b.logical(y), a_zp=0, b_zp=0)
    total = FloatTensor.of(b, QTensor(product, ((0,), (1,), (2,)), FP32))
    total = total if alpha == 1 else total * alpha
    return total if beta == 0 else total + FloatTensor.of(b, bias) * beta


@op(
    "aten.baddbmm.default",
    quant=QuantRule(factors=(1, 2)),
    check=check_baddbmm,
    decompose=decompose_baddbmm,
    floats=baddbmm_of_floats,
    samples=[Sample(I8(2, 5, 6), I8(2, 5, 8), I8(2, 8, 6))],
)
def baddbmm(b: Builder, bias: Any, x: QTensor, y: QTensor, *, out: Result, beta: float = 1, alpha: float = 1) -> QTensor:
    """Return beta * bias + alpha * x @ y, decomposed into bmm, mul and add unless beta = 0 and alpha > 0. TOSA MATMUL."""
    return _multiply(b, x, y, alpha, out.qparams)


def draw_scaled_bmm(s: AtenBuilder, x: Node, y: Node, factor: float) -> Node:
    """Insert factor * x @ y as one operator."""
    return s(aten.baddbmm.default, s.constant(torch.zeros(1, 1, 1, dtype=x.meta["val"].dtype)), x, y, beta=0, alpha=factor)


def fold_factor(s: AtenBuilder, x: Any, factor: Any) -> Any:
    """Fold a positive constant factor into the bmm that computes ``x``, directly or through views.

    Return None if this is not possible.
    """
    if isinstance(x, (int, float)):
        x, factor = factor, x
    factor = s.number(factor)
    if factor is None or factor <= 0 or not isinstance(x, Node) or not isinstance(x.target, torch._ops.OpOverload):
        return None
    product: Any = x
    while product.target in _VIEWS and len(product.users) == 1:
        product = product.args[0]
    if product.target is not aten.bmm.default or len(product.users) != 1:
        return None
    scaled = s.before(product)
    product.replace_all_uses_with(draw_scaled_bmm(scaled, product.args[0], product.args[1], factor))
    return x if x is not product else scaled.node.prev


_VIEWS = {aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default}


@composite(
    "aten.einsum.default",
    samples=[
        Sample("bhqd,bhkd->bhqk", [I8(1, 2, 5, 8), I8(1, 2, 6, 8)]),
        Sample("bij,bjk->bik", [I8(2, 4, 5), I8(2, 5, 3)]),
        Sample("bchw,bkhw->bck", [I8(1, 4, 3, 5), I8(1, 6, 3, 5)]),
        Sample("ij->ji", [I8(4, 6)]),
        Sample("nkctv,kvw->nctw", [I8(1, 2, 2, 5, 3), I8(2, 3, 3)]),
    ],
)
def einsum(s: AtenBuilder, equation: str, operands: list[Node], path: Any = None) -> Any:
    """Return einsum(equation, operands), which PyTorch decomposes into permutes, views and bmm."""
    return s.inline(lambda *xs: torch.einsum(equation, *xs), *operands)

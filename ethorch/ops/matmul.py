"""Products of two activations: bmm, and what becomes one (matmul, mm, addmm, baddbmm, einsum)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.errors import Reason
from ethorch.ops.elementwise import mul
from ethorch.ops.quant_rules import EACH_INPUT
from ethorch.ops.spec import I8, Sample, W, composite, op
from ethorch.qparams import QParams, QTensor
from ethorch.real import FP32, Real
from ethorch.sketch import Sketch, shape_of
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import Value

aten = torch.ops.aten


def _multiplied(b: Builder, x: QTensor, y: QTensor, factor: float, out: QParams) -> QTensor:
    """out[n] = factor * x[n] @ y[n]."""
    step, dims = factor * x.qparams.step * y.qparams.step, ((0,), (1,), (2,))
    row = b.limits.get("MATMUL")
    if row is None or row.dtypes is None or "INT16" in row.dtypes or {x.value.dtype, y.value.dtype} != {"INT16"}:
        acc = b.emit("MATMUL", b.logical(x), b.logical(y), a_zp=x.qparams.zp, b_zp=y.qparams.zp)
        return QTensor(b.requantize(acc, step, out), dims, out)
    (x_high, x_low), (y_high, y_low) = (_halves(b, b.logical(value)) for value in (x, y))
    unit = max(out.step / 128, x.shape[2] * step)  # of the sum, which stays below 2**31: products have 30 bits
    middle = b.emit("ADD", b.emit("MATMUL", x_high, y_low, a_zp=0, b_zp=-128), b.emit("MATMUL", x_low, y_high, a_zp=-128, b_zp=0))
    parts = (
        (b.emit("MATMUL", x_high, y_high, a_zp=0, b_zp=0), 65536), (middle, 256),
        (b.emit("MATMUL", x_low, y_low, a_zp=-128, b_zp=-128), 1),
    )  # fmt: skip
    high, between, low = (b.rescale(acc, weight * step / unit, dtype="INT32") for acc, weight in parts)
    total = b.emit("ADD", b.emit("ADD", low, between), high)
    return QTensor(b.requantize(total, unit, out), dims, out)


def _halves(b: Builder, value: Value) -> tuple[Value, Value]:
    """INT8 (value >> 8, value & 255 with the zero point -128) of INT16."""

    def minus(value: Value, other: Value) -> Value:
        return b.emit("SUB", b.rescale(value, 1.0, dtype="INT32"), other)

    half = b.const(np.full((1,) * value.rank, 128, np.int32))
    high = b.rescale(minus(value, half), 1 / 256, dtype="INT8")  # rounds to nearest
    return high, b.rescale(minus(value, b.rescale(high, 256.0, dtype="INT32")), 1.0, output_zp=-128, dtype="INT8")


@op(
    "aten.bmm.default", quant=EACH_INPUT,
    samples=[
        Sample(I8(2, 5, 16), I8(2, 16, 7, low=-1.0, high=2.0)), Sample(I8(1, 1, 9), I8(1, 9, 4)), Sample(I8(3, 8, 4), I8(3, 4, 1)),
    ],
)  # fmt: skip
def bmm(b: Builder, x: QTensor, y: QTensor, *, out: QParams) -> QTensor:
    """out[n] = x[n] @ y[n]: int8[N,H,C], int8[N,C,W] -> int8[N,H,W], exact in int32, rounded once; int16 of int48 alike, or
    where the NPU multiplies int8 only, of the four products of halves. TOSA 1.0 MATMUL."""
    return _multiplied(b, x, y, 1.0, out)


@bmm.check
def _(x: Any, y: Any) -> Reason | None:
    if not (isinstance(x, QTensor) and isinstance(y, QTensor)):
        return Reason("matmul.operand", "an operand is not quantized", "Quantize the module it is in.")
    return None


def is_parameter(x: Any) -> bool:
    """Is that node a constant of the model?"""
    return isinstance(x, Node) and x.op == "get_attr"


def _product(s: Sketch, x: Node, y: Node, bias: Node | None = None) -> Node:
    """x[..., H, C] @ y[C, W]; a linear layer where y is a constant, else a bmm of one."""
    if is_parameter(y):
        return s(aten.linear.default, x, s.transposed(y), bias)
    rows = math.prod(shape_of(x)[:-1])
    flat = s(aten.reshape.default, x, [1, rows, shape_of(x)[-1]])
    made = s(aten.bmm.default, flat, s(aten.unsqueeze.default, y, 0))
    made = s(aten.reshape.default, made, [*shape_of(x)[:-1], shape_of(y)[1]])
    return made if bias is None else s(aten.add.Tensor, made, bias)


@composite("aten.mm.default", samples=[Sample(I8(6, 9), I8(9, 5)), Sample(I8(6, 9), W(9, 5))])
def mm(s: Sketch, x: Node, y: Node) -> Any:
    """out = x @ y: int8[H,C], int8[C,W] -> int8[H,W], as bmm of one, or linear with a constant y."""
    return _product(s, x, y)


@composite(
    "aten.matmul.default", bound=1,
    samples=[
        Sample(I8(6, 9), I8(9, 5)), Sample(I8(2, 3, 5, 8), I8(2, 3, 8, 6)), Sample(I8(2, 3, 5, 8), I8(8, 6)),
        Sample(I8(4, 8), I8(8)), Sample(I8(8), I8(8, 4)), Sample(I8(2, 1, 5, 8), I8(3, 8, 6)), Sample(I8(2, 5, 8), W(8, 6)),
        Sample(I8(1, 4, 7), I8(5, 7, 3)),
    ],
)  # fmt: skip
def matmul(s: Sketch, x: Node, y: Node) -> Any:
    """out = x @ y as PyTorch broadcasts it: batches to one bmm; a matrix on the right to one product over all rows."""
    xs, ys = shape_of(x), shape_of(y)
    if len(xs) == 1:
        made = matmul.decompose(s, s(aten.unsqueeze.default, x, 0), y)  # type: ignore[misc]
        return s(aten.squeeze.dim, made, -2 if len(ys) > 1 else 0)
    if len(ys) == 1:
        return s(aten.squeeze.dim, matmul.decompose(s, x, s(aten.unsqueeze.default, y, 1)), -1)  # type: ignore[misc]
    if len(ys) == 2 or (math.prod(ys[:-2]) == 1 and len(ys) <= len(xs)):
        return _product(s, x, y if len(ys) == 2 else s(aten.reshape.default, y, list(ys[-2:])))
    batch = torch.broadcast_shapes(xs[:-2], ys[:-2])
    flat = []
    for operand, shape in ((x, xs), (y, ys)):
        if shape[:-2] != batch:
            operand = s(aten.expand.default, operand, [*batch, *shape[-2:]])
        flat.append(operand if len(batch) == 1 else s(aten.reshape.default, operand, [math.prod(batch), *shape[-2:]]))
    made = s(aten.bmm.default, *flat)
    return made if len(batch) == 1 else s(aten.reshape.default, made, [*batch, xs[-2], ys[-1]])


@op("aten.baddbmm.default", quant=EACH_INPUT, samples=[Sample(I8(2, 5, 6), I8(2, 5, 8), I8(2, 8, 6))])
def baddbmm(b: Builder, bias: Any, x: QTensor, y: QTensor, *, out: QParams, beta: float = 1, alpha: float = 1) -> QTensor:
    """out = alpha * x @ y: a bmm whose factor costs nothing. With a bias it is decomposed into bmm, mul and add."""
    return _multiplied(b, x, y, alpha, out)


@baddbmm.check
def _(bias: Any, x: Any, y: Any, beta: float = 1, alpha: float = 1) -> Reason | None:
    if beta != 0 or alpha <= 0:
        return Reason("baddbmm.factors", f"beta={beta}, alpha={alpha}: allowed are beta=0 and alpha > 0")
    return None


@baddbmm.decomposition
def _(s: Sketch, bias: Node, x: Node, y: Node, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta == 0 and alpha > 0:
        return None
    made = s(aten.bmm.default, x, y)
    made = made if alpha == 1 else s(aten.mul.Scalar, made, alpha)
    if beta == 0:
        return made
    return s(aten.add.Tensor, made, bias if beta == 1 else s(aten.mul.Scalar, bias, beta))


def scaled_bmm(s: Sketch, x: Node, y: Node, factor: float) -> Node:
    """factor * x @ y in one operator."""
    return s(aten.baddbmm.default, s.constant(torch.zeros(1, 1, 1, dtype=x.meta["val"].dtype)), x, y, beta=0, alpha=factor)


def _fold_factor(s: Sketch, x: Any, factor: Any) -> Any:
    """mul or div of a bmm by a positive number goes into the bmm, views in between or not; None where it does not apply."""
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
    product.replace_all_uses_with(scaled_bmm(scaled, product.args[0], product.args[1], factor))
    return x if x is not product else scaled.node.prev


_VIEWS = {aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default}


@mul.decomposition
def _(s: Sketch, x: Any, y: Any) -> Any:
    return _fold_factor(s, x, y)


@composite(
    "aten.einsum.default",
    samples=[
        Sample("bhqd,bhkd->bhqk", [I8(1, 2, 5, 8), I8(1, 2, 6, 8)]), Sample("bij,bjk->bik", [I8(2, 4, 5), I8(2, 5, 3)]),
        Sample("bchw,bkhw->bck", [I8(1, 4, 3, 5), I8(1, 6, 3, 5)]), Sample("ij->ji", [I8(4, 6)]),
    ],
)  # fmt: skip
def einsum(s: Sketch, equation: str, operands: list[Node], path: Any = None) -> Any:
    """The permutes, views and bmm that PyTorch makes of an equation."""
    return s.inline(lambda *xs: torch.einsum(equation, *xs), *operands)

# --- of floats --------------------------------------------------------------------------------------------------------------


@baddbmm.floats
def _(b: Builder, bias: Any, x: QTensor, y: QTensor, *, beta: float = 1, alpha: float = 1) -> Real:
    product = b.emit("MATMUL", b.logical(x), b.logical(y), a_zp=0, b_zp=0)
    made = Real.of(b, QTensor(product, ((0,), (1,), (2,)), FP32))
    made = made if alpha == 1 else made * alpha
    return made if beta == 0 else made + Real.of(b, bias) * beta

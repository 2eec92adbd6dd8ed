"""Changes of dtype: between quantized tensors, plain integers and truth values."""

from __future__ import annotations

from typing import Any

import torch

from ethorch.errors import Reason
from ethorch.ops.compare import compared
from ethorch.ops.logic import in_codes_of, native, widened
from ethorch.ops.quant_rules import EACH_INPUT, SAME_AS_INPUT, QuantRule
from ethorch.ops.rounding import truncating, whole
from ethorch.ops.spec import I8, Ints, Sample, Truth, op
from ethorch.qparams import QParams, QTensor, real
from ethorch.real import Real
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import FLOATS


def _rule(node: Any) -> QuantRule:
    """Float to float keeps its qparams; an integer result has none; a float made of integers gets its own."""
    x, result = node.args[0].meta["val"].dtype, node.meta["val"].dtype
    if not result.is_floating_point:
        return QuantRule(output="none")
    return SAME_AS_INPUT if x.is_floating_point else EACH_INPUT


@op(
    "aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.other", "aten.type_as.default",
    "dim_order_ops._to_dim_order_copy.default", quant=_rule, pointwise=True, steps=True,
    samples=[
        Sample(I8(2, 3, 7), dtype="int32"), Sample(I8(2, 90, low=-500.0, high=700.0), dtype="int32"),
        Sample(I8(4, 9), dtype="bool"), Sample(I8(2, 90, low=-5e5, high=7e5), dtype="int32"),
        Sample(Ints(3, 40, low=-90, high=120), dtype="float32"), Sample(Truth(2, 3, 5, 1), dtype="float32"),
        Sample(Truth(2, 30), dtype="int32"), Sample(Ints(2, 40, low=-2, high=2), dtype="bool"),
        Sample(Ints(4, 30, low=-128, high=127, dtype="int8"), dtype="int32"),
        Sample(Ints(4, 30, low=-128, high=127), dtype="int8"), Sample(Ints(4, 30, dtype="int16"), dtype="int32"),
    ],
)  # fmt: skip
def to(b: Builder, x: QTensor, *_: Any, out: QParams | None, **__: Any) -> QTensor:
    """out = x in another dtype. Quantized to integers rounds towards 0, by a TABLE or of int16 by arithmetic; integers to
    quantized is a RESCALE; integers that do not fit a narrower dtype saturate. TOSA 1.0 CAST, RESCALE."""
    if out is not None:
        return in_codes_of(b, x, out)
    if b.result_dtype == "BOOL":
        return compared(b, "ne", x, 0)
    wanted = b.result_dtype or "INT32"
    if x.q is not None:
        number = whole(b, x, torch.trunc, truncating, 1.0)
        if number is None:
            raise b.refuse("to.int16", "int16 activations to integers that no thresholds tell apart; allowed is int8")
        return QTensor(number if wanted == "INT32" else b.rescale(number, 1.0, dtype=wanted), x.dims, None)
    if x.value.dtype == wanted:
        return x
    if x.value.dtype == "BOOL" and native(b):
        return QTensor(b.emit("CAST", x.value, dtype=wanted), x.dims, None)
    value = widened(b, x.value)
    return QTensor(value if wanted == "INT32" else b.rescale(value, 1.0, dtype=wanted), x.dims, None)


@to.check
def _(x: Any, *_: Any, **__: Any) -> Reason | None:
    if not isinstance(x, QTensor):
        return Reason("to.operand", f"its input is {type(x).__name__}; allowed are quantized tensors, integers and truth values")
    return None


@to.floats
def _(b: Builder, x: QTensor, *_: Any, **__: Any) -> QTensor:
    """TOSA 1.0 CAST; to integers, which PyTorch truncates and CAST rounds, of the truncated number."""
    wanted = b.result_dtype or "INT32"
    if x.q is None:
        return QTensor(b.rescale(x.value, 1.0, dtype=wanted), x.dims, real(wanted))
    if wanted in FLOATS:
        return b.requantized(x, real(wanted))
    if wanted == "BOOL":
        return compared(b, "ne", x, 0)
    whole = Real.of(b, x).trunc().t
    return QTensor(b.cast(whole.value, wanted), whole.dims, None)

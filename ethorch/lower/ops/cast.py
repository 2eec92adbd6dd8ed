"""Dtype conversions."""

from __future__ import annotations

from typing import Any

import torch

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FloatTensor
from ethorch.lower.builder.qparams import QTensor, Result, float_qparams
from ethorch.lower.builder.truth import native
from ethorch.lower.ops.compare import emit_comparison
from ethorch.lower.ops.quant_rules import EACH_INPUT, SAME_AS_INPUT, QuantRule
from ethorch.lower.ops.rounding import match_thresholds, truncate
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.spec import op
from ethorch.support.errors import Reason
from ethorch.tosa.ir import FLOATS


def _rule(node: Any) -> QuantRule:
    x, result = node.args[0].meta["val"].dtype, node.meta["val"].dtype
    if not result.is_floating_point:
        return QuantRule(output="none")
    return SAME_AS_INPUT if x.is_floating_point else EACH_INPUT


def check_to(x: Any, *_: Any, **__: Any) -> Reason | None:
    if not isinstance(x, QTensor):
        return Reason(
            "to.operand",
            "expected a quantized, integer or bool tensor as input, got a float tensor",
            "Quantize the module that computes the input.",
        )
    return None


def to_of_floats(b: Builder, x: QTensor, *_: Any, out: Result, **__: Any) -> QTensor:
    """Cast to or from a float dtype. Floats are truncated before a cast to integers, because CAST rounds."""
    dtype = out.dtype or "INT32"
    if x.is_integer:
        return QTensor(b.rescale(x.value, 1.0, dtype=dtype), x.dims, float_qparams(dtype))
    if dtype in FLOATS:
        return b.to_qparams(x, float_qparams(dtype))
    if dtype == "BOOL":
        return emit_comparison(b, "ne", x, 0)
    truncated = FloatTensor.of(b, x).trunc().t
    return QTensor(b.cast(truncated.value, dtype), truncated.dims, None)


@op(
    "aten._to_copy.default",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.prim_Device",
    "aten.to.other",
    "aten.type_as.default",
    "dim_order_ops._to_dim_order_copy.default",
    quant=_rule,
    pointwise=True,
    steps=True,
    check=check_to,
    floats=to_of_floats,
    samples=[
        Sample(I8(2, 3, 7), dtype="int32"),
        Sample(I8(2, 90, low=-500.0, high=700.0), dtype="int32"),
        Sample(I8(4, 9), dtype="bool"),
        Sample(I8(2, 90, low=-5e5, high=7e5), dtype="int32"),
        Sample(Ints(3, 40, low=-90, high=120), dtype="float32"),
        Sample(Bools(2, 3, 5, 1), dtype="float32"),
        Sample(Bools(2, 30), dtype="int32"),
        Sample(Ints(2, 40, low=-2, high=2), dtype="bool"),
        Sample(Ints(4, 30, low=-128, high=127, dtype="int8"), dtype="int32"),
        Sample(Ints(4, 30, low=-128, high=127), dtype="int8"),
        Sample(Ints(4, 30, low=-70_000, high=7_000_000), dtype="int8"),
        Sample(Ints(4, 30, low=-32768, high=32767, dtype="int16"), dtype="int8"),
        Sample(Ints(4, 30, dtype="int16"), dtype="int32"),
    ],
)
def to(b: Builder, x: QTensor, *_: Any, out: Result, **__: Any) -> QTensor:
    """Return x in another dtype.

    - Quantized values are rounded towards 0 to integers, with a TABLE for int8 and arithmetic for int16.
    - Integers and truth values are quantized by a RESCALE, which rounds.
    - Integers cast to a narrower dtype keep their low bits, as in PyTorch.
    - In a cast to bool, nonzero elements become True.

    TOSA CAST, RESCALE.
    """
    if out.q is not None:
        return b.operand(x, out.q)
    if out.dtype == "BOOL":
        return emit_comparison(b, "ne", x, 0)
    dtype = out.dtype or "INT32"
    if not x.is_integer:
        number = match_thresholds(b, x, torch.trunc, truncate, 1.0)
        if number is None:
            text = "the scale of the int16 activations does not permit an exact conversion to integers; expected int8 activations"
            raise b.refuse("to.int16", text, "Quantize the operator's module to int8.")
        return QTensor(number, x.dims, None)
    if dtype in FLOATS:  # unquantized floats are integers with scale 1
        return QTensor(b.widen(x.value), x.dims, None)
    if x.value.dtype == dtype:
        return x
    if x.value.dtype == "BOOL" and native(b):
        return QTensor(b.emit("CAST", x.value, dtype=dtype), x.dims, None)
    wide = b.widen(x.value)
    fits = x.value.dtype == "BOOL" or (x.value.dtype, dtype) == ("INT8", "INT16")
    return QTensor(b.rescale(wide, 1.0, dtype=dtype) if fits else wide, x.dims, None)

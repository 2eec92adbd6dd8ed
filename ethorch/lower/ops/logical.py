"""Logical operators on truth values, which are BOOL on the U85, and int8 values 0 and 1 on U55 and U65."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.builder.reductions import minimum_of
from ethorch.lower.builder.truth import difference, invert_truth, native, truth_of_codes
from ethorch.lower.ops.compare import COMPARED, emit_comparison
from ethorch.lower.ops.samples import Bools, Ints, Sample
from ethorch.lower.ops.spec import op


def as_truth(b: Builder, x: Any) -> QTensor:
    """Convert x to truth values. Nonzero elements become true.

    If the NPU lacks BOOL, INT8 values are treated as truth values and not changed.
    """
    plain = b.plain_tensor(x)
    if plain.value.dtype in ("BOOL", b.tuning.truth_dtype) and plain.is_integer:
        return plain
    return emit_comparison(b, "ne", plain, 0)


def logical(b: Builder, name: str, x: Any, y: Any) -> QTensor:
    """Emit the logical operation x ``name`` y, where ``name`` is ``and``, ``or`` or ``xor``."""
    (xv, yv), dims = b.align(as_truth(b, x), as_truth(b, y))
    if native(b):
        return QTensor(b.emit(f"LOGICAL_{name.upper()}", xv, yv), dims, None)
    wide = b.widen(xv), b.widen(yv)
    if name == "xor":
        return QTensor(truth_of_codes(b, difference(b, *wide, below=1 << 8), lambda d: d != 0), dims, None)
    result = b.emit({"and": "MINIMUM", "or": "MAXIMUM"}[name], *wide)
    return QTensor(b.rescale(result, 1.0, dtype="INT8"), dims, None)


_TRUTHS = (
    Sample(Bools(2, 3, 5), Bools(2, 3, 5)), Sample(Bools(1, 4, 5, 6), Bools(4, 1, 1)),
    Sample(Ints(4, 9, low=-1, high=1), Bools(4, 1)),
    Sample(Ints(4, 9, low=-2, high=2, dtype="int8"), Ints(4, 9, low=-2, high=2, dtype="int8")),
)  # fmt: skip


_LOGICAL = {
    "and": "TOSA LOGICAL_AND, or MINIMUM for int8.",
    "or": "TOSA LOGICAL_OR, or MAXIMUM for int8.",
    "xor": "TOSA LOGICAL_XOR, or SUB and TABLE for int8.",
}


def _logical_operator(name: str) -> None:
    @op(
        f"aten.logical_{name}.default",
        quant=COMPARED,
        doc=f"Return x {name} y with broadcasting, for truth values. Nonzero elements of other dtypes are true. {_LOGICAL[name]}",
        pointwise=True,
        steps=True,
        truths=True,
        samples=_TRUTHS,
    )
    def lower_logical(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
        return logical(b, name, x, y)


for _name in ("and", "or", "xor"):
    _logical_operator(_name)


@op(
    "aten.logical_not.default",
    quant=COMPARED,
    pointwise=True,
    steps=True,
    truths=True,
    samples=[Sample(Bools(2, 3, 5)), Sample(Ints(40, low=-1, high=1)), Sample(Ints(40, low=-2, high=2, dtype="int8"))],
)
def logical_not(b: Builder, x: Any, *, out: Result) -> QTensor:
    """Return not x. TOSA LOGICAL_NOT, or TABLE for int8."""
    x = as_truth(b, x)
    return QTensor(invert_truth(b, x.value), x.dims, None)


def reduce_truth_over(b: Builder, name: str, x: Any, dims: Sequence[int]) -> QTensor:
    """Reduce x with ``any`` or ``all`` over ``dims``. Reduced dims have size 1."""
    x = as_truth(b, x)
    value = x.value
    for axis in sorted({axis for dim in dims for axis in x.dims[dim] if value.shape[axis] > 1}):
        if native(b):
            value = b.emit(f"REDUCE_{name.upper()}", value, axis=axis)
        else:
            value = b.emit("REDUCE_MAX", value, axis=axis) if name == "any" else minimum_of(b, value, axis)
    return QTensor(value, tuple(() if dim in dims else axes for dim, axes in enumerate(x.dims)), None)


_REDUCED = {"any": "TOSA REDUCE_ANY, or REDUCE_MAX for int8.", "all": "TOSA REDUCE_ALL, or MINIMUM for int8."}


def _reduction(name: str) -> None:
    @op(
        f"aten.{name}.dims",
        quant=COMPARED,
        truths=True,
        doc=f"Reduce x with ``{name}`` over ``dim``. Nonzero elements of other dtypes are true. {_REDUCED[name]}",
        also={
            f"aten.{name}.default": lambda x: ((x, None), {}),
            f"aten.{name}.dim": lambda x, dim, keepdim=False: ((x, [dim], keepdim), {}),
        },
        samples=[
            Sample(Bools(2, 3, 5, chance=0.3), [-1]),
            Sample(Bools(1, 4, 5, 6, chance=0.7), [1, 2], True),
            Sample(Ints(40, 3, low=-1, high=1), None),
            Sample(Ints(4, 9, low=-2, high=2, dtype="int8"), [1]),
        ],
    )
    def reduce_truth(b: Builder, x: Any, dim: Any = None, keepdim: bool = False, *, out: Result) -> QTensor:
        rank = len(x.shape)
        dims = range(rank) if dim is None or (isinstance(dim, (list, tuple)) and not dim) else [d % rank for d in dim]
        return b.view(reduce_truth_over(b, name, x, list(dims)), out.shape)


for _name in ("any", "all"):
    _reduction(_name)

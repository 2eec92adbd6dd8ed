"""Data movement: views, permutes, cat, slices, constant padding, and what does nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ethorch.errors import Reason
from ethorch.ops.logic import fitting
from ethorch.ops.quant_rules import JOINED, SAME_AS_INPUT
from ethorch.ops.spec import I8, Ints, Sample, Truth, op
from ethorch.qparams import QParams, QTensor
from ethorch.tosa.builder import Builder


def _wanted(b: Builder, x: QTensor, out: QParams | None) -> QTensor:
    """``x`` in the qparams ``out``; plain integers as they are."""
    return x if out is None else b.requantized(x, out)


@op(
    "aten.view.default", "aten.view_copy.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints",
    "aten.unflatten.int", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_copy.default",
    "aten.squeeze_copy.dim", "aten.squeeze_copy.dims", "aten.unsqueeze.default", "aten.unsqueeze_copy.default", quant=SAME_AS_INPUT,
    samples=[
        Sample(I8(1, 8, 4, 4), [1, 128]), Sample(I8(2, 3, 4), [6, 4]), Sample(I8(4, 6), [2, 2, 3, 2]),
        Sample(I8(1, 12, 1, 1), [12])],
)  # fmt: skip
def view(b: Builder, x: QTensor, *_: Any, out: QParams) -> QTensor:
    """out = the elements of x in PyTorch's order, under another shape; data moves only if it must. TOSA 1.0 RESHAPE."""
    return _wanted(b, b.view(x, b.result_shape), out)


@op(
    "aten.permute.default", "aten.permute_copy.default", quant=SAME_AS_INPUT,
    also={
        "aten.transpose.int": lambda x, a, b: ((x, _swapped(x, a, b)), {}),
        "aten.transpose_copy.int": lambda x, a, b: ((x, _swapped(x, a, b)), {}),
        "aten.t.default": lambda x: ((x, _swapped(x, 0, -1)), {}),
        "aten.t_copy.default": lambda x: ((x, _swapped(x, 0, -1)), {}),
    },
    samples=[Sample(I8(2, 3, 4, 5), [0, 2, 3, 1]), Sample(I8(4, 6), [1, 0]), Sample(I8(1, 4, 6), [0, -1, 1])],
)  # fmt: skip
def permute(b: Builder, x: QTensor, dims: Sequence[int], *, out: QParams) -> QTensor:
    """out = x with its dimensions in the order ``dims``; nothing moves until an operator needs another order."""
    return _wanted(b, b.permute(x, [dim % x.rank for dim in dims]), out)


def _swapped(x: Any, first: int, second: int) -> list[int]:
    order = list(range(len(x.shape)))
    if order:
        order[first], order[second] = order[second], order[first]
    return order


@op(
    "aten.dropout.default", "aten.alias.default", "aten.alias_copy.default", "aten.clone.default", "aten.detach.default",
    "aten.detach_copy.default", "aten.contiguous.default", "aten.lift_fresh_copy.default", "dim_order_ops._clone_dim_order.default",
    quant=SAME_AS_INPUT, absorbs=True, samples=[Sample(I8(2, 5), 0.5, False)],
)  # fmt: skip
def identity(b: Builder, x: QTensor, *_: Any, out: QParams, **__: Any) -> QTensor:
    """out = x. Copies, and dropout in evaluation, which do nothing."""
    return _wanted(b, x, out)


@op(
    "aten.cat.default", "aten.concat.default", "aten.concatenate.default", quant=JOINED,
    samples=[
        Sample([I8(1, 4, 5, 5), I8(1, 3, 5, 5, low=-1.0, high=1.0)], 1), Sample([I8(2, 3), I8(2, 3), I8(2, 1)], -1),
        Sample([I8(1, 4, 2, 5), I8(1, 4, 3, 5)], 2), Sample([I8(1, 4, 2), I8(2, 4, 2)]),
        Sample([Ints(2, 3), Ints(2, 2, dtype="int16", low=-99, high=99)], 1), Sample([Truth(2, 9), Truth(1, 9)]),
        Sample([I8(2, 3), Ints(2, 2, low=-3, high=3)], 1),
    ],
)  # fmt: skip
def cat(b: Builder, tensors: Sequence[QTensor], dim: int = 0, *, out: QParams | None) -> QTensor:
    """out = the tensors side by side along ``dim``, a RESCALE for each whose scale is not ``out``'s; or plain integers. TOSA 1.0
    CONCAT."""
    parts = [fitting(b, x, out) for x in tensors if x.shape != (0,)]
    values, dims = b.alike(parts)
    axis = dims[dim % parts[0].rank][0]
    return QTensor(b.emit("CONCAT", *values, axis=axis) if len(values) > 1 else values[0], dims, out)


@op(
    "aten.slice.Tensor", "aten.slice_copy.Tensor", quant=SAME_AS_INPUT,
    samples=[Sample(I8(1, 8, 5, 5), 1, 2, 6), Sample(I8(4, 9), -1, -5, 9223372036854775807), Sample(I8(2, 10), 1, 1, 10, 3)],
)  # fmt: skip
def slice_(
    b: Builder,
    x: QTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    *,
    out: QParams,
) -> QTensor:
    """out = x[start:end:step] along ``dim``. TOSA 1.0 SLICE; a step is a SLICE of the axis folded by it."""
    value, axis, dims = b.axis_of(x, dim)
    extent = value.shape[axis]
    first, last, step = slice(start, end, step).indices(extent)
    count = len(range(first, last, step))

    def part(value: Any, axis: int, start: int, size: int) -> Any:
        starts = tuple(start if k == axis else 0 for k in range(value.rank))
        sizes = tuple(size if k == axis else e for k, e in enumerate(value.shape))
        return value if sizes == value.shape else b.emit("SLICE", value, start=starts, size=sizes)

    if step == 1:
        return _wanted(b, QTensor(part(value, axis, first, count), dims, x.q), out)
    whole = min(count * step, extent - first)
    value = part(value, axis, first, whole)
    if whole < count * step:  # the last group is short: fill it with what is dropped again
        fill = [0] * (2 * value.rank)
        fill[2 * axis + 1] = count * step - whole
        value = b.emit("PAD", value, padding=tuple(fill), pad_const=0)
    shape = value.shape
    folded = b.reshape(value, (*shape[:axis], count, step, *shape[axis + 1 :]))
    value = b.reshape(part(folded, axis + 1, 0, 1), (*shape[:axis], count, *shape[axis + 1 :]))
    return _wanted(b, QTensor(value, dims, x.q), out)


@op(
    "aten.select.int",
    "aten.select_copy.int",
    quant=SAME_AS_INPUT,
    samples=[Sample(I8(2, 6, 5), 1, -2), Sample(I8(4, 3), 0, 1)],
)
def select(b: Builder, x: QTensor, dim: int, index: int, *, out: QParams) -> QTensor:
    """out = x[index] along ``dim``, which goes. TOSA 1.0 SLICE."""
    index %= x.shape[dim]
    assert slice_.lower is not None
    return b.view(slice_.lower(b, x, dim, index, index + 1, out=out), b.result_shape)


@op(
    "aten.constant_pad_nd.default", quant=SAME_AS_INPUT,
    also={"aten.pad.default": lambda x, pad, mode="constant", value=None: ((x, pad, value or 0.0), {"mode": mode})},
    samples=[Sample(I8(1, 4, 5, 5), [1, 2, 0, 1]), Sample(I8(2, 6), [1, 1], 0.5), Sample(I8(1, 4, 5, 5), [0, 0, 0, 0, 1, 2]),
             Sample(Ints(3, 20), [2, -1], 7.0), Sample(Truth(3, 20), [2, 1], 1.0)],
)  # fmt: skip
def constant_pad(
    b: Builder, x: QTensor, pad: Sequence[int], value: float = 0.0, *, out: QParams | None, mode: str = "constant"
) -> QTensor:
    """out = x with ``value`` around it; negative pads crop. TOSA 1.0 PAD, with the code of ``value``."""
    stored, dims = b.alike([_wanted(b, x, out)])
    values = stored[0]
    pads = [(0, 0)] * values.rank
    for k in range(len(pad) // 2):
        pads[dims[x.rank - 1 - k][0]] = (pad[2 * k], pad[2 * k + 1])
    starts = tuple(max(-before, 0) for before, _ in pads)
    sizes = tuple(extent + min(before, 0) + min(after, 0) for extent, (before, after) in zip(values.shape, pads, strict=True))
    if sizes != values.shape:
        values = b.emit("SLICE", values, start=starts, size=sizes)
    padding = tuple(max(amount, 0) for both in pads for amount in both)
    if any(padding):
        values = b.emit("PAD", values, padding=padding, pad_const=int(value) if out is None else out.quantize([value])[0].item())
    return QTensor(values, dims, out)


@constant_pad.check
def _(x: Any, pad: Any, value: Any = 0.0, mode: str = "constant") -> Reason | None:
    return None if mode == "constant" else Reason("pad.mode", f"mode {mode!r}, allowed is 'constant'")

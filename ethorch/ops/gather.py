"""Rows by their number: index_select, index, gather, embedding, index_copy and index_put.

Numbers known at compile time become slices and a CONCAT, one slice per run; those from a tensor are a GATHER, which only
some NPUs have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.errors import Reason
from ethorch.ops.accumulate import accumulated
from ethorch.ops.copies import joined, piece, wanted
from ethorch.ops.logic import fitting
from ethorch.ops.quant_rules import EACH_INPUT, QuantRule
from ethorch.ops.shape import constant_pad
from ethorch.ops.spec import I8, Ints, Sample, Truth, W, composite, op
from ethorch.qparams import QParams, QTensor
from ethorch.sketch import Sketch, attribute, shape_of
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import Value

aten = torch.ops.aten

#: A constant index with more runs than this is not worth a slice for each.
_MOST_PIECES = 1024
_FIRST_ONLY = QuantRule(only_first=True, output="same")


def runs(index: Sequence[int]) -> list[tuple[int, int]]:
    """(first, length) of the stretches of ``index`` that count up by one."""
    found: list[tuple[int, int]] = []
    for value in index:
        if found and value == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((value, 1))
    return found


def _numbers(index: Any) -> np.ndarray | None:
    """A constant index as an array; None for one that is computed."""
    if isinstance(index, np.ndarray):
        return index
    data = index.value.data if isinstance(index, QTensor) else None
    return None if data is None else data.reshape(index.shape)


def rows_of(b: Builder, x: QTensor, dim: int, index: Any) -> QTensor:
    """x's slices number ``index`` (any shape, or computed) along ``dim``, which its dims take the place of."""
    dim %= x.rank
    shape = tuple(index.shape)
    constant = _numbers(index)
    if constant is not None:
        if constant.dtype == np.bool_:
            constant = np.flatnonzero(constant)
            shape = constant.shape
        numbers = [int(k) % x.shape[dim] for k in constant.ravel()]
        pieces = runs(numbers)
        if len(pieces) <= _MOST_PIECES:
            parts = [piece(b, x, dim, first, size) for first, size in pieces]
            return b.view(joined(b, parts, dim), (*x.shape[:dim], *shape, *x.shape[dim + 1 :]))
        codes = b.const(np.asarray(numbers, np.int32), name="index")
    else:
        codes = b.logical(index)
    return _gathered(b, x, dim, codes, shape)


def _gather(b: Builder, values: Value, index: Value) -> Value:
    """TOSA 1.0 GATHER, which has no BOOL."""
    if values.dtype != "BOOL":
        return b.emit("GATHER", values, index)
    return b.emit("CAST", b.emit("GATHER", b.emit("CAST", values, dtype="INT8"), index), dtype="BOOL")


def _gathered(b: Builder, x: QTensor, dim: int, index: Value, shape: tuple[int, ...]) -> QTensor:
    """TOSA 1.0 GATHER along ``dim``, moved to the front; ``index`` INT32 of any rank, of ``shape``."""
    others = [d for d in range(x.rank) if d != dim]
    inner = math.prod(x.shape[d] for d in others)
    value = b.reshape(b.stored_as(x, [(dim,), tuple(others)]), (1, x.shape[dim], inner))
    rows = _gather(b, value, b.reshape(index, (1, math.prod(shape))))
    count = len(shape)
    dims = tuple((k,) for k in range(count + len(others)))
    full = QTensor(b.reshape(rows, (*shape, *(x.shape[d] for d in others))), dims, x.q)
    return b.permute(full, [*range(count, count + dim), *range(count), *range(count + dim, full.rank)])


def _operands_known(x: Any, *indices: Any) -> Reason | None:
    for index in indices:
        if not isinstance(index, (QTensor, np.ndarray)):
            return Reason("index.operand", f"an index is {type(index).__name__}; allowed are int32 tensors and constants",
                          "Convert the index to int32 in the model.")  # fmt: skip
    return None


@op(
    "aten.index_select.default", "aten.index_select_copy.default", quant=_FIRST_ONLY, needs="GATHER",
    samples=[Sample(I8(2, 5, 7), 1, torch.tensor([3, 0, 1, 4])), Sample(I8(6, 4), -1, torch.tensor([2])),
             Sample(I8(2, 5, 7), 1, Ints(4, low=0, high=4))],
)  # fmt: skip
def index_select(b: Builder, x: QTensor, dim: int, index: Any, *, out: QParams) -> QTensor:
    """out[..., k, ...] = x[..., index[k], ...]."""
    return wanted(b, rows_of(b, x, dim, index), out)


@index_select.check
def _(x: Any, dim: int, index: Any) -> Reason | None:
    return _operands_known(x, index)


@op(
    "aten.embedding.default", quant=_FIRST_ONLY, needs="GATHER",
    samples=[Sample(W(9, 16), torch.tensor([[1, 2, 8], [0, 0, 5]])), Sample(W(9, 16), Ints(2, 5, low=0, high=8))],
)  # fmt: skip
def embedding(
    b: Builder, weight: QTensor, indices: Any, padding_idx: int = -1, scale_grad: bool = False, sparse: bool = False, *,
    out: QParams,
) -> QTensor:  # fmt: skip
    """out = weight[indices]: rows of a table, chosen by INT32 numbers. TOSA 1.0 GATHER."""
    return wanted(b, rows_of(b, weight, 0, indices), out)


@embedding.check
def _(weight: Any, indices: Any, padding_idx: int = -1, scale_grad: bool = False, sparse: bool = False) -> Reason | None:
    if not isinstance(weight, QTensor):
        return Reason("graph.weight_not_quantized", "its weight is float", "Give the quantizer a config for this module.")
    return _operands_known(weight, indices)


def _as_int32(s: Sketch, index: Any) -> Node | None:
    """int64 numbers converted to int32, which the CPU does where they are an input of the program; None where they need not.

    Where the NPU has no GATHER they stay int64, which is what the CPU's kernels take.
    """
    known = not isinstance(index, Node) or index.op == "get_attr"
    if known or index.meta["val"].dtype != torch.int64 or s.absent("GATHER"):
        return None
    return s(aten.to.dtype, index, torch.int32)


@embedding.decomposition
def _(s: Sketch, weight: Node, indices: Node, padding_idx: int = -1, scale_grad: bool = False, sparse: bool = False) -> Any:
    narrow = _as_int32(s, indices)
    return None if narrow is None else s(aten.embedding.default, weight, narrow, padding_idx)


@index_select.integer_decomposition
def _(s: Sketch, x: Node, dim: int, index: Any) -> Any:
    narrow = _as_int32(s, index)
    return None if narrow is None else s(aten.index_select.default, x, dim, narrow)


@op(
    "aten.index.Tensor", quant=_FIRST_ONLY, needs="GATHER",
    samples=[
        Sample(I8(2, 5, 7), [None, torch.tensor([3, 0, 1])]), Sample(I8(6, 4), [torch.tensor([[2, 0], [5, 5]])]),
        Sample(I8(4, 5, 3), [torch.tensor([0, 3, 1]), torch.tensor([4, 2, 2])]),
        Sample(I8(4, 5, 3), [Ints(6, low=0, high=3), Ints(2, 1, low=0, high=4)]),
    ],
)  # fmt: skip
def index(b: Builder, x: QTensor, indices: Sequence[Any], *, out: QParams) -> QTensor:
    """out = x[indices]: one index, or several constant ones of neighbouring dims, which number the elements of both."""
    given = [k for k, one in enumerate(indices) if one is not None]
    if len(given) == 1:
        return wanted(b, rows_of(b, x, given[0], indices[given[0]]), out)
    arrays = np.broadcast_arrays(*(np.asarray(_numbers(indices[k])) for k in given))
    first, last = given[0], given[-1]
    extents = x.shape[first : last + 1]
    flat = np.ravel_multi_index([a % extent for a, extent in zip(arrays, extents, strict=True)], extents)
    merged = b.view(x, (*x.shape[:first], math.prod(extents), *x.shape[last + 1 :]))
    return wanted(b, rows_of(b, merged, first, np.asarray(flat).reshape(arrays[0].shape)), out)


@index.check
def _(x: Any, indices: Any) -> Reason | None:
    given = [k for k, one in enumerate(indices) if one is not None]
    constant = all(_numbers(indices[k]) is not None for k in given if isinstance(indices[k], (QTensor, np.ndarray)))
    if len(given) > 1 and not (constant and given == list(range(given[0], given[-1] + 1))):
        return Reason("index.several", f"{len(given)} indices; allowed are one, or constants of neighbouring dims")
    return _operands_known(x, *(indices[k] for k in given))


@op(
    "aten.gather.default", quant=_FIRST_ONLY, needs="GATHER",
    samples=[
        Sample(I8(3, 6), 1, torch.tensor([[0, 5], [2, 2], [1, 4]])), Sample(I8(1, 5, 4), 1, torch.tensor([[[3] * 4, [0] * 4]])),
    ],
)  # fmt: skip
def gather(b: Builder, x: QTensor, dim: int, index: Any, sparse_grad: bool = False, *, out: QParams) -> QTensor:
    """out[i, j] = x[i, index[i, j]] for dim 1, and so on. A constant index picks slices of the flat x, else a GATHER."""
    dim %= x.rank
    shape = tuple(index.shape)
    constant = _numbers(index)
    if constant is not None:
        places = list(np.indices(shape, sparse=True))
        places[dim] = constant % x.shape[dim]
        flat = np.ravel_multi_index(tuple(np.broadcast_arrays(*places)), x.shape)
        rows = rows_of(b, b.view(x, (math.prod(x.shape),)), 0, flat)
        return wanted(b, rows, out)
    for d in range(x.rank):
        if d != dim:
            x = piece(b, x, d, 0, shape[d])
    order = [*(d for d in range(x.rank) if d != dim), dim]
    lines = math.prod(shape[d] for d in order[:-1])
    values = b.reshape(b.logical(b.permute(x, order)), (lines, x.shape[dim], 1))
    numbers = b.reshape(b.logical(b.permute(index, order)), (lines, shape[dim]))
    picked = b.reshape(_gather(b, values, numbers), [shape[d] for d in order])
    result = QTensor(picked, tuple((k,) for k in range(x.rank)), x.q)
    return wanted(b, b.permute(result, [order.index(d) for d in range(x.rank)]), out)


@gather.check
def _(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Reason | None:
    return _operands_known(x, index)


@gather.integer_decomposition
def _(s: Sketch, x: Node, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    narrow = _as_int32(s, index)
    return None if narrow is None else s(aten.gather.default, x, dim, narrow)


def _one_number(s: Sketch, x: Node, indices: Sequence[Any]) -> tuple[Node, int, Node] | None:
    """(x with neighbouring dims merged, that dim, one index into it) for several computed indices; None where they need not."""
    given = [k for k, one in enumerate(indices) if one is not None]
    first, last = given[0], given[-1]
    if len(given) < 2 or given != list(range(first, last + 1)) or all(indices[k].op == "get_attr" for k in given):
        return None
    if any(indices[k].meta["val"].dtype not in (torch.int32, torch.int64) for k in given):
        return None
    shape = shape_of(x)
    number: Any = None
    for k in given:
        one = _as_int32(s, indices[k]) or indices[k]
        number = one if number is None else s(aten.add.Tensor, s(aten.mul.Scalar, number, shape[k]), one)
    merged = s(aten.reshape.default, x, [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]])
    return merged, first, number


def _known_numbers(s: Sketch, x: Node, indices: Sequence[Any]) -> tuple[Node, int, Node] | None:
    """As ``_one_number``, of constants: masks are the numbers of what is true in them. None where dims are no neighbours."""
    each: list[torch.Tensor | None] = []
    for one in indices:
        tensor = None if one is None else attribute(s.model, one)
        each += tensor.nonzero().unbind(1) if tensor is not None and tensor.dtype == torch.bool else [tensor]
    given = [k for k, one in enumerate(each) if one is not None]
    first, last = given[0], given[-1]
    if given != list(range(first, last + 1)):
        return None
    shape, number = shape_of(x), torch.zeros((), dtype=torch.int64)
    for k in given:
        number = number * shape[k] + torch.remainder(each[k].to(torch.int64), shape[k])  # type: ignore[union-attr]
    merged = s(aten.reshape.default, x, [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]])
    return merged, first, s.constant(number)


@index.integer_decomposition
def _(s: Sketch, x: Node, indices: Any) -> Any:
    """Several computed indices number the elements of the dims they are for, merged."""
    several = None if s.absent("GATHER") else _one_number(s, x, indices)
    if several is not None:
        merged, dim, number = several
        return s(aten.index.Tensor, merged, [*[None] * dim, number])
    narrow = [_as_int32(s, one) for one in indices]
    if not any(narrow):
        return None
    return s(aten.index.Tensor, x, [new or old for new, old in zip(narrow, indices, strict=True)])


def _put(b: Builder, x: QTensor, dim: int, places: Sequence[int], source: QTensor) -> QTensor:
    """x with source[k] at places[k] along ``dim``; the last one wins where a place is named twice."""
    holder = {place: k for k, place in enumerate(places)}
    parts: list[QTensor] = []
    wide = [(0, holder[k]) if k in holder else (1, k) for k in range(x.shape[dim])]
    start = 0
    while start < len(wide):
        size = 1
        while start + size < len(wide) and wide[start + size] == (wide[start][0], wide[start][1] + size):
            size += 1
        origin, first = wide[start]
        parts.append(piece(b, x if origin else source, dim, first, size))
        start += size
    return joined(b, parts, dim)


def _scattered(b: Builder, x: QTensor, dim: int, index: QTensor, source: QTensor) -> QTensor:
    """x with source[..., k, ...] as x[..., index[k], ...]: TOSA 1.0 SCATTER along ``dim``, moved to the front."""
    others = [d for d in range(x.rank) if d != dim]
    inner, count = math.prod(x.shape[d] for d in others), source.shape[dim]
    rows = b.reshape(b.stored_as(x, [(dim,), tuple(others)]), (1, x.shape[dim], inner))
    given = b.reshape(b.stored_as(source, [(dim,), tuple(others)]), (1, count, inner))
    put = b.emit("SCATTER", rows, b.reshape(b.logical(index), (1, count)), given)
    full = QTensor(b.reshape(put, (x.shape[dim], *(x.shape[d] for d in others))), tuple((k,) for k in range(x.rank)), x.q)
    return b.permute(full, [*range(1, dim + 1), 0, *range(dim + 1, x.rank)])


@op(
    "aten.index_copy.default", quant=EACH_INPUT, needs="SCATTER",
    samples=[Sample(I8(2, 5, 3), 1, torch.tensor([4, 0]), I8(2, 2, 3, low=-1.0))],
)  # fmt: skip
def index_copy(b: Builder, x: QTensor, dim: int, index: Any, source: QTensor, *, out: QParams) -> QTensor:
    """out = x with source[k] as x[index[k]] along ``dim``, index constant: slices and a CONCAT."""
    dim %= x.rank
    numbers = _numbers(index)
    assert numbers is not None
    places = [int(k) % x.shape[dim] for k in numbers.ravel()]
    return _put(b, fitting(b, x, out), dim, places, fitting(b, source, out))


@op(
    "aten.index_put.default", quant=EACH_INPUT, needs="SCATTER",
    samples=[
        Sample(I8(2, 5, 3), [None, torch.tensor([4, 0])], I8(2, 2, 3, low=-1.0)), Sample(I8(5, 3), [torch.tensor([1])], I8(3)),
        Sample(I8(2, 5, 3), [None, Ints(1, low=0, high=4)], I8(2, 1, 3, low=-1.0)),
        Sample(I8(4, 5, 3), [Ints(1, low=0, high=3), Ints(1, low=0, high=4)], I8(3)), Sample(I8(4, 5), [Truth(4, 5)], I8(1)),
        Sample(Ints(9, 4), [torch.tensor([4, 0])], Ints(2, 4)),
        Sample(I8(5, 3), [Ints(8, low=-5, high=4)], I8(8, 3, low=-1.0), True),
        Sample(I8(4, 5, 3), [Ints(6, low=0, high=3), Ints(6, low=-5, high=4)], I8(3), True),
        Sample(I8(4, 5, 3), [torch.tensor([[3, -4], [1, 3]]), torch.tensor([4, 0])], I8(2, 3)),
        Sample(I8(3, 4, 5), [None, torch.tensor([[True, False, False, True, True], [False] * 5] * 2)], I8(6)),
    ],
)  # fmt: skip
def index_put(
    b: Builder, x: QTensor, indices: Sequence[Any], values: QTensor, accumulate: bool = False, *, out: QParams
) -> QTensor:
    """out = x with values as x[indices]. One constant index: slices and a CONCAT; one that is computed is a SCATTER, and should
    name no place twice."""
    (dim,) = (k for k, one in enumerate(indices) if one is not None)
    numbers = _numbers(indices[dim])
    if numbers is None:
        return _scattered(b, fitting(b, x, out), dim, indices[dim], fitting(b, values, out))
    shape = x.shape
    if numbers.dtype == np.bool_ and numbers.ndim > 1:  # a mask of several dims chooses among the elements of them all
        x = b.view(x, (*shape[:dim], numbers.size, *shape[dim + numbers.ndim :]))
    places = [int(k) % x.shape[dim] for k in (np.flatnonzero(numbers) if numbers.dtype == np.bool_ else numbers.ravel())]
    full = (*x.shape[:dim], len(places), *x.shape[dim + 1 :])
    values = fitting(b, values, out)
    values = b.view(values, (1,) * (x.rank - values.rank) + values.shape)
    multiples = [want // have for want, have in zip(full, values.shape, strict=True)]
    (value,), dims = b.alike([values])
    stored = [1] * value.rank
    for d, count in enumerate(multiples):
        stored[dims[d][0]] = count
    source = QTensor(b.emit("TILE", value, multiples=tuple(stored)) if max(stored) > 1 else value, dims, out)
    return b.view(_put(b, fitting(b, x, out), dim, places, source), shape)


@index_copy.check
def _(x: Any, dim: int, index: Any, source: Any) -> Reason | None:
    if _numbers(index) is None:
        return Reason("index_copy.dynamic", "its index is computed at run time; a constant one is needed")
    return _operands_known(x, index)


@index_put.check
def _(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Reason | None:
    given = [one for one in indices if one is not None]
    if accumulate:
        return Reason("index_put.accumulate", "accumulate=True of a mask, of distant dims, of integers or of very many places",
                      "Let EthosUQuantizer quantize what can be taken apart.")  # fmt: skip
    if len(given) != 1 or not isinstance(given[0], (QTensor, np.ndarray)):
        return Reason("index_put.index", f"{len(given)} indices; allowed are one, of int32, or several of dims side by side",
                      "Let EthosUQuantizer quantize it, and index what is transposed.")  # fmt: skip
    if _numbers(given[0]) is None and len(given[0].shape) != 1:
        text = f"a computed index of rank {len(given[0].shape)}; allowed is 1"
        return Reason("index_put.index", text, "Let EthosUQuantizer quantize it.")
    if not isinstance(values, QTensor) or not isinstance(x, QTensor):
        return Reason("index_put.operand", "its values are not quantized", "Quantize the module they are in.")
    return None


@index_copy.decomposition
def _(s: Sketch, x: Node, dim: int, index: Node, source: Node) -> Any:
    """One that is computed is an index_put."""
    if index.op == "get_attr" or s.absent("SCATTER"):
        return None
    return s(aten.index_put.default, x, [*[None] * (dim % len(shape_of(x))), index], source)


@index_put.decomposition
def _(s: Sketch, x: Node, indices: Any, values: Node, accumulate: bool = False) -> Any:
    """A mask chooses between x and one value; several indices become one of rank 1, a computed one of int32; sums are products."""
    given = [k for k, one in enumerate(indices) if one is not None]
    first, shape = indices[given[0]], shape_of(x)
    if accumulate:
        return accumulated(s, x, indices, values)
    constant = all(indices[k].op == "get_attr" for k in given)
    if constant and len(given) == 1 and len(shape_of(first)) == 1:
        return None
    if first.meta["val"].dtype == torch.bool and given == [0] and math.prod(shape_of(values)) == 1:
        rank = len(shape_of(first))
        return s(aten.where.self, s(aten.reshape.default, first, [*shape_of(first), *[1] * (len(shape) - rank)]), values, x)
    if constant:
        known = _known_numbers(s, x, indices)
        if known is None:
            return None
        merged, dim, number = known
        if not math.prod(shape_of(number)):
            return x
    elif s.absent("SCATTER") or any(indices[k].meta["val"].dtype == torch.bool for k in given):
        return None
    else:
        merged, dim, number = _one_number(s, x, indices) or (x, given[0], _as_int32(s, first) or first)
    places, rows = shape_of(number), shape_of(merged)
    if number is first and len(places) == 1 and shape_of(values) == (*rows[:dim], *places, *rows[dim + 1 :]):
        return None
    values = s(aten.expand.default, values, [*rows[:dim], *places, *rows[dim + 1 :]])
    values = s(aten.reshape.default, values, [*rows[:dim], math.prod(places), *rows[dim + 1 :]])
    flat = s.constant(attribute(s.model, number).flatten()) if constant else s(aten.reshape.default, number, [-1])
    put = s(aten.index_put.default, merged, [*[None] * dim, flat], values)
    return s(aten.reshape.default, put, list(shape))


# --- padding with what is there already -----------------------------------------------------------------------------------


def padded_index(extent: int, before: int, after: int, mode: str) -> list[int]:
    """Which element of a dim of ``extent`` each element of the padded one is; negative pads crop."""
    places = range(-before, extent + after)
    if mode == "replicate":
        return [min(max(k, 0), extent - 1) for k in places]
    if mode == "circular":
        return [k % extent for k in places]
    period = 2 * (extent - 1)
    return [min(k % period, period - k % period) if period else 0 for k in places]


@constant_pad.decomposition
def _(s: Sketch, x: Node, pad: Sequence[int], value: float = 0.0, *, mode: str = "constant") -> Any:
    """Modes "reflect", "replicate" and "circular" choose elements by a constant index along each dim."""
    if mode == "constant":
        return None
    return _padded(s, x, pad, mode)


def _padded(s: Sketch, x: Node, pad: Sequence[int], mode: str) -> Node:
    rank = len(shape_of(x))
    for k in range(len(pad) // 2):
        dim, (before, after) = rank - 1 - k, pad[2 * k : 2 * k + 2]
        if before or after:
            numbers = padded_index(shape_of(x)[dim], before, after, mode)
            x = s(aten.index_select.default, x, dim, s.constant(torch.tensor(numbers)))
    return x


@composite(
    "aten.reflection_pad2d.default", "aten.reflection_pad1d.default", "aten.reflection_pad3d.default",
    samples=[Sample(I8(1, 3, 5, 6), [2, 1, 3, 2]), Sample(I8(2, 4, 4), [1, 1, 0, 2])],
)  # fmt: skip
def reflection_pad(s: Sketch, x: Node, padding: Sequence[int]) -> Any:
    """out = x mirrored at its edges."""
    return _padded(s, x, padding, "reflect")


@composite(
    "aten.replication_pad2d.default", "aten.replication_pad1d.default", "aten.replication_pad3d.default",
    samples=[Sample(I8(1, 3, 5, 6), [2, 1, 3, 2]), Sample(I8(2, 4, 4), [1, 1, 0, 2])],
)  # fmt: skip
def replication_pad(s: Sketch, x: Node, padding: Sequence[int]) -> Any:
    """out = x with its edges repeated."""
    return _padded(s, x, padding, "replicate")

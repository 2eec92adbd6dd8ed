"""Sorts, medians, quantiles and bucketize."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.builder.reductions import sum_axes, with_reduced_dims
from ethorch.lower.builder.truth import extreme
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.compare import emit_comparison
from ethorch.lower.ops.quant_rules import SAME_AS_INPUT, QuantRule
from ethorch.lower.ops.samples import I8, Ints, Sample
from ethorch.lower.ops.spec import composite, op
from ethorch.support.errors import Reason

aten = torch.ops.aten

#: Longest dim that is sorted, by 63 comparisons of two operations each.
_LONGEST = 16
#: Maximum number of comparisons with boundaries.
_MOST_COMPARISONS = 1 << 24


def comparisons(count: int) -> Iterator[tuple[int, int]]:
    """Iterate over the pairs that Batcher's odd-even merge sort of ``count`` values compares and exchanges."""
    run = 1
    while run < count:
        distance = run
        while distance:
            for start in range(distance % run, count - distance, 2 * distance):
                for low in range(start, min(start + distance, count - distance)):
                    if low // (2 * run) == (low + distance) // (2 * run):
                        yield low, low + distance
            distance //= 2
        run *= 2


def _select_ranks(b: Builder, x: QTensor, dim: int, ranks: Sequence[int]) -> list[QTensor]:
    value, axis, dims = b.axis_of(x, dim)
    columns = [b.slice_axis(value, axis, place, 1) for place in range(value.shape[axis])]
    needed, steps = set(ranks), list[tuple[int, int, bool, bool]]()
    for low, high in reversed(list(comparisons(len(columns)))):
        if low in needed or high in needed:
            steps.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    for low, high, has_less, has_greater in reversed(steps):
        pair = columns[low], columns[high]
        if has_less:
            columns[low] = extreme(b, "MINIMUM", *pair)
        if has_greater:
            columns[high] = extreme(b, "MAXIMUM", *pair)
    return [QTensor(columns[rank], dims, x.q) for rank in ranks]


def _draw_topk(s: AtenBuilder, x: Node, dim: int, count: int, largest: bool) -> list[Node] | None:
    if shape_of(x)[dim] <= _LONGEST and not s.is_read(1):
        return None
    return s.results(aten.topk.default, x, count, dim, largest, True)


def decompose_sort(s: AtenBuilder, x: Node, dim: int = -1, descending: bool = False) -> Any:
    return _draw_topk(s, x, dim, shape_of(x)[dim], descending)


@op(
    "aten.sort.default",
    quant=SAME_AS_INPUT,
    decompose=decompose_sort,
    decomposes_integers=True,
    also={"aten.sort.stable": lambda x, dim=-1, descending=False, stable=None: ((x, dim, descending), {})},
    samples=[
        Sample(I8(2, 3, 8)), Sample(I8(1, 5, 4, 3), 1, True), Sample(Ints(4, 7), 0),
        Sample(I8(5, 6), dim=0, stable=True).of("aten.sort.stable"),
    ],
)  # fmt: skip
def sort(b: Builder, x: QTensor, dim: int = -1, descending: bool = False, *, out: Result) -> QTensor:
    """Return x sorted along ``dim``, without rounding. TOSA MINIMUM, MAXIMUM.

    If ``dim`` has more than 16 elements or the indices are used, the operator becomes a topk on the CPU.
    """
    ranks = range(x.shape[dim])
    return b.to_qparams(b.concat(_select_ranks(b, x, dim, ranks[::-1] if descending else ranks), dim), out.q)


def _decompose_rank(s: AtenBuilder, x: Node, rank: int, dim: int, keepdim: bool) -> Any:
    count = shape_of(x)[dim]
    largest = rank >= count // 2
    top = _draw_topk(s, x, dim, count - rank if largest else rank + 1, largest)
    if top is None:
        return None
    last = [s(aten.select.int, each, dim, -1) for each in top]
    return [s(aten.unsqueeze.default, each, dim) for each in last] if keepdim else last


def decompose_kthvalue(s: AtenBuilder, x: Node, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return _decompose_rank(s, x, k - 1, dim, keepdim)


@op(
    "aten.kthvalue.default",
    quant=SAME_AS_INPUT,
    decompose=decompose_kthvalue,
    decomposes_integers=True,
    samples=[Sample(I8(2, 3, 8), 3), Sample(I8(5, 6, 2), 6, 1, True), Sample(Ints(4, 7), 1, 0)],
)
def kthvalue(b: Builder, x: QTensor, k: int, dim: int = -1, keepdim: bool = False, *, out: Result) -> QTensor:
    """Return the k-th smallest value along ``dim``, without rounding. TOSA MINIMUM, MAXIMUM.

    See ``sort`` for the limits.
    """
    (ranked,) = _select_ranks(b, x, dim, [k - 1])
    return b.view(b.to_qparams(ranked, out.q), out.shape)


def decompose_median(s: AtenBuilder, x: Node, dim: int, keepdim: bool = False) -> Any:
    return _decompose_rank(s, x, (shape_of(x)[dim] - 1) // 2, dim, keepdim)


@op(
    "aten.median.dim",
    "aten.nanmedian.dim",
    quant=SAME_AS_INPUT,
    decompose=decompose_median,
    decomposes_integers=True,
    samples=[Sample(I8(2, 3, 9), -1), Sample(I8(4, 6, 5), 1, True), Sample(Ints(4, 7), 0)],
)
def median(b: Builder, x: QTensor, dim: int, keepdim: bool = False, *, out: Result) -> QTensor:
    """Return the median of x along ``dim``, or the lower of the two middle elements. See ``sort``. TOSA MINIMUM, MAXIMUM."""
    (ranked,) = _select_ranks(b, x, dim, [(x.shape[dim] - 1) // 2])
    return b.view(b.to_qparams(ranked, out.q), out.shape)


@composite(
    "aten.median.default", "aten.nanmedian.default", decomposes_integers=True, samples=[Sample(I8(3, 5)), Sample(Ints(2, 7))]
)
def median_all(s: AtenBuilder, x: Node) -> Any:
    """Return the median of all elements of x. See ``median``."""
    flat = s(aten.reshape.default, x, [math.prod(shape_of(x))])
    return s.results(aten.median.dim, flat, 0)[0]


#: For each interpolation, the weight of the upper neighbor as a function of the rank.
_SHARES: dict[str, Callable[[float], float]] = {
    "linear": lambda rank: rank % 1,
    "lower": lambda rank: 0.0,
    "higher": lambda rank: float(rank % 1 > 0),
    "nearest": lambda rank: float(round(rank) > rank),
    "midpoint": lambda rank: 0.5 * (rank % 1 > 0),
}


@composite(
    "aten.quantile.scalar",
    "aten.nanquantile.scalar",
    samples=[
        Sample(I8(3, 9), 0.3, 1),
        Sample(I8(5, 4), 0.75, 0, True, interpolation="midpoint"),
        Sample(I8(2, 5), 0.5),
        Sample(I8(3, 4), 0.5, 1, interpolation="nearest"),
    ],
    bound16=2,
)
def quantile(
    s: AtenBuilder, x: Node, q: float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """Return the quantile ``q`` of x along ``dim``: a sorted value, or an interpolation between two sorted values. See ``sort``."""
    shape = list(shape_of(x))
    reduced_shape = [1] * len(shape) if dim is None else [1 if k == dim % len(shape) else extent for k, extent in enumerate(shape)]
    if dim is None:
        x, dim = s(aten.reshape.default, x, [math.prod(shape)]), 0
    rank = q * (shape_of(x)[dim] - 1)
    low, share = math.floor(rank), _SHARES[interpolation](rank)
    values = s.results(aten.sort.default, x, dim)[0]
    quantiles = s(aten.select.int, values, dim, low + int(share == 1))
    if 0 < share < 1:
        above = s(aten.select.int, values, dim, low + 1)
        quantiles = s(aten.add.Tensor, s(aten.mul.Tensor, quantiles, 1 - share), s(aten.mul.Tensor, above, share))
    return s(aten.reshape.default, quantiles, reduced_shape) if keepdim else quantiles


def check_bucketize(x: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Reason | None:
    if not isinstance(x, QTensor) or not isinstance(boundaries, np.ndarray):
        return Reason(
            "bucketize.operand",
            "expected a quantized or integer input and constant boundaries, got "
            + ("a float input" if not isinstance(x, QTensor) else "computed boundaries"),
            "Quantize the model with EthosUQuantizer, which supports computed boundaries.",
        )
    if (x.is_integer or x.qparams.dtype != "INT8") and math.prod(x.shape) * boundaries.size > _MOST_COMPARISONS:
        return Reason(
            "bucketize.comparisons",
            f"expected at most {_MOST_COMPARISONS} comparisons, got {math.prod(x.shape)} elements x {boundaries.size} boundaries",
            "Quantize the operator's module to int8, which uses a table, or split the input into smaller tensors.",
        )
    return None


def decompose_bucketize(s: AtenBuilder, x: Any, boundaries: Node, out_int32: bool = False, right: bool = False) -> Any:
    if not isinstance(x, Node):
        return None
    if boundaries.op != "get_attr":
        rows = s(aten.unsqueeze.default, boundaries, 0) if shape_of(x) else boundaries
        return _count_less(s, x, rows, out_int32, right)
    if out_int32:
        return None
    return _as_int64(s, s(aten.bucketize.Tensor, x, boundaries, out_int32=True, right=right))


def _as_int64(s: AtenBuilder, index: Node) -> Node:
    return s(aten._to_copy.default, index, dtype=torch.int64)


def _count_less(s: AtenBuilder, x: Node, rows: Node, out_int32: bool, right: bool) -> Node:
    less = s(aten.ge.Tensor if right else aten.gt.Tensor, s(aten.unsqueeze.default, x, -1), rows)
    count = s(aten.sum.dim_IntList, s(aten._to_copy.default, less, dtype=torch.int32), [-1], dtype=torch.int32)
    return count if out_int32 else _as_int64(s, count)


@op(
    "aten.bucketize.Tensor",
    quant=QuantRule(output="none", only_first=True),
    check=check_bucketize,
    decompose=decompose_bucketize,
    decomposes_integers=True,
    samples=[
        Sample(I8(2, 3, 9), torch.tensor([-2.0, -0.5, 0.0, 1.25])),
        Sample(I8(4, 30), torch.linspace(-3, 3, 200), out_int32=True, right=True),
        Sample(Ints(4, 30, low=-9, high=9), torch.tensor([-8, -3, 0, 0, 5]), right=True),
    ],
)
def bucketize(b: Builder, x: QTensor, boundaries: Any, *, out: Result, out_int32: bool = False, right: bool = False) -> QTensor:
    """Return the number of boundaries that are less than x (or at most x, if ``right``). TOSA TABLE, GREATER.

    int16 values and plain integers are compared with each boundary.
    """
    if not x.is_integer and x.qparams.dtype == "INT8":
        counts = np.searchsorted(
            boundaries.astype(np.float32), x.qparams.table_inputs.astype(np.float32), "right" if right else "left"
        )
        return b.integer_table(x, counts.astype(np.float32))
    less = emit_comparison(b, "ge" if right else "gt", b.view(x, (*x.shape, 1)), boundaries)
    counted = with_reduced_dims(less, sum_axes(b, b.widen(less.value), list(less.dims[-1])), [x.rank], None)
    return b.view(counted, out.shape)


@composite(
    "aten.searchsorted.Tensor",
    decomposes_integers=True,
    samples=[
        Sample(torch.tensor([-2.0, -0.5, 0.0, 1.25]), I8(2, 3, 9)),
        Sample(torch.tensor([-2.0, -0.5, 0.0, 1.25]), I8(9), side="right", out_int32=True),
        Sample(torch.tensor([[-8, -3, 0, 0, 5], [-5, -4, -3, 3, 4]]), Ints(2, 30, low=-9, high=9)),
    ],
)
def searchsorted(
    s: AtenBuilder, boundaries: Node, x: Node, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    """Return the number of boundaries that are less than x (or at most x, if ``right``). See ``bucketize``.

    ``sorter`` must be None.
    """
    if sorter is not None:
        return None
    right = right or side == "right"
    if len(shape_of(boundaries)) == 1:
        return s(aten.bucketize.Tensor, x, boundaries, out_int32=out_int32, right=right)
    return _count_less(s, x, s(aten.unsqueeze.default, boundaries, -2), out_int32, right)

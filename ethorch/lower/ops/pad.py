"""Constant, reflection, replication and circular padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, op_name
from ethorch.lower.ops.attention import MASKED
from ethorch.lower.ops.pool2d import max_pool2d
from ethorch.lower.ops.quant_rules import JOINED, SAME_AS_INPUT, QuantRule
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.spec import composite, find, op
from ethorch.support.errors import Reason

aten = torch.ops.aten


def compute_source_indices(extent: int, before: int, after: int, mode: str) -> list[int]:
    """Return source indices along a padded dim. Negative padding crops."""
    places = range(-before, extent + after)
    if mode == "replicate":
        return [min(max(k, 0), extent - 1) for k in places]
    if mode == "circular":
        return [k % extent for k in places]
    period = 2 * (extent - 1)
    return [min(k % period, period - k % period) if period else 0 for k in places]


def pad_by_index(s: AtenBuilder, x: Node, pad: Sequence[int], mode: str) -> Node:
    rank = len(shape_of(x))
    for k in range(len(pad) // 2):
        dim, (before, after) = rank - 1 - k, pad[2 * k : 2 * k + 2]
        if before or after:
            numbers = compute_source_indices(shape_of(x)[dim], before, after, mode)
            x = s(aten.index_select.default, x, dim, s.constant(torch.tensor(numbers)))
    return x


@composite(
    "aten.reflection_pad2d.default",
    "aten.reflection_pad1d.default",
    "aten.reflection_pad3d.default",
    samples=[Sample(I8(1, 3, 5, 6), [2, 1, 3, 2]), Sample(I8(2, 4, 4), [1, 1, 0, 2])],
)
def reflection_pad(s: AtenBuilder, x: Node, padding: Sequence[int]) -> Any:
    """Pad x with its reflection, using a constant index along each dim."""
    return pad_by_index(s, x, padding, "reflect")


@composite(
    "aten.replication_pad2d.default",
    "aten.replication_pad1d.default",
    "aten.replication_pad3d.default",
    samples=[Sample(I8(1, 3, 5, 6), [2, 1, 3, 2]), Sample(I8(2, 4, 4), [1, 1, 0, 2])],
)
def replication_pad(s: AtenBuilder, x: Node, padding: Sequence[int]) -> Any:
    """Pad x with its edge elements, using a constant index along each dim."""
    return pad_by_index(s, x, padding, "replicate")


def check_constant_pad(x: Any, pad: Any, value: Any = 0.0, mode: str = "constant") -> Reason | None:
    if mode == "constant":
        return None
    return Reason(
        "pad.mode",
        f"expected mode 'constant', got {mode!r}",
        "Quantize the model with EthosUQuantizer, which replaces the padding with an indexing operator.",
    )


def decompose_constant_pad(s: AtenBuilder, x: Node, pad: Sequence[int], value: float = 0.0, *, mode: str = "constant") -> Any:
    return None if mode == "constant" else pad_by_index(s, x, pad, mode)


def _pad_rule(node: Any) -> QuantRule:
    args, kwargs = constant_pad.canonical(op_name(node.target), *arguments(node))
    (number,) = (*args[2:], kwargs.get("value", 0.0))[:1]
    if number == 0 or abs(number) >= -MASKED or (number < 0 and _only_maxima_read(node, args[1])):
        return SAME_AS_INPUT
    return JOINED


def _only_maxima_read(node: Any, pad: Sequence[int]) -> bool:
    # Each window must contain an element of the input.
    waiting = [(node, torch.nn.functional.pad(torch.ones(shape_of(node.args[0])), pad))]
    while waiting:
        source, is_input = waiting.pop()
        for user in source.users:
            spec = find(user.target)
            if spec is max_pool2d:
                if not aten.max_pool2d.default(is_input, *user.args[1:], **user.kwargs).all():
                    return False
            elif spec is not None and spec.moves and user.all_input_nodes == [source]:
                waiting.append((user, user.target(is_input, *user.args[1:], **user.kwargs)))
            else:
                return False
    return True


@op(
    "aten.constant_pad_nd.default",
    quant=_pad_rule,
    also={"aten.pad.default": lambda x, pad, mode="constant", value=None: ((x, pad, value or 0.0), {"mode": mode})},
    check=check_constant_pad,
    decompose=decompose_constant_pad,
    samples=[
        Sample(I8(1, 4, 5, 5), [1, 2, 0, 1]),
        Sample(I8(2, 6), [1, 1], 0.5),
        Sample(I8(1, 4, 5, 5), [0, 0, 0, 0, 1, 2]),
        Sample(Ints(3, 20), [2, -1], 7.0),
        Sample(Bools(3, 20), [2, 1], 1.0),
    ],
)
def constant_pad(b: Builder, x: QTensor, pad: Sequence[int], value: float = 0.0, *, out: Result, mode: str = "constant") -> QTensor:
    """Pad x with ``value``. Negative padding crops. TOSA PAD, SLICE."""
    stored, dims = b.alike([b.to_qparams(x, out.q)])
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
        code = int(value) if out.q is None else out.q.quantize([value])[0].item()
        values = b.emit("PAD", values, padding=padding, pad_const=code)
    return QTensor(values, dims, out.q)

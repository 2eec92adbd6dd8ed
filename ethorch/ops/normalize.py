"""Normalization: by given statistics (batch norm) and by a row's own (layer, group, instance and RMS norm).

Batch norm behind a convolution or linear is folded into its weights before quantization. The others are a core that knows
its rows' statistics exactly, and where there are a gamma and beta, a batch norm behind it that applies them, calibrated in
between: a 1x1 DEPTHWISE_CONV2D costs a fraction of MUL and ADD against constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.errors import Reason
from ethorch.ops.conv import bias_codes
from ethorch.ops.quant_rules import EACH_INPUT, FIRST_INPUT
from ethorch.ops.rows import deviations, fineness, finer, function_of, pieces, product, sum_of_squares
from ethorch.ops.spec import I8, Sample, W, composite, op
from ethorch.qparams import QParams, QTensor
from ethorch.real import Real
from ethorch.sketch import Sketch, shape_of
from ethorch.tosa.builder import Builder

aten = torch.ops.aten


@op(
    "aten._native_batch_norm_legit_no_training.default", quant=FIRST_INPUT,
    also={
        "aten.batch_norm.default": lambda x, w, bias, mean, var, training=False, momentum=0.1, eps=1e-5, cudnn=False: (
            (x, w, bias, mean, var, momentum, eps), {}
        ),
        "aten.native_batch_norm.default": lambda x, w, bias, mean, var, training, momentum, eps: (
            (x, w, bias, mean, var, momentum, eps), {}
        ),
    },
    samples=[
        Sample(I8(1, 6, 5, 5), W(6), W(6), W(6), W(6).positive(), 0.1, 1e-5),
        Sample(I8(2, 6, 5), None, None, W(6), W(6).positive(), 0.1, 1e-5)],
)  # fmt: skip
def batch_norm(
    b: Builder, x: QTensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float, *, out: QParams
) -> QTensor:
    """out = (x - mean) / sqrt(var + eps) * weight + bias per channel: int8[N,C,...] -> int8, rounded once.

    A 1x1 DEPTHWISE_CONV2D with weight 127 and one scale per channel, so the factors lose nothing. TOSA 1.0 DEPTHWISE_CONV2D.
    """
    channels = x.shape[1]
    gain = np.asarray(1.0 if weight is None else weight, np.float64) / np.sqrt(np.asarray(var, np.float64) + eps)
    gain = np.broadcast_to(gain, channels)
    offset = (0.0 if bias is None else np.asarray(bias, np.float64)) - np.asarray(mean, np.float64) * gain
    least = np.abs(offset) * 2.0 ** -(38 if x.qparams.dtype == "INT16" else 30)  # it fits the accumulator; x hardly counts then
    scales = [float(s) for s in np.maximum(x.qparams.step * np.maximum(np.abs(gain), 1e-12) / 127, least)]
    codes = np.rint(x.qparams.step * gain / scales).astype(np.int8)
    spatial = tuple(range(2, x.rank))
    places = [(), (), (0, *spatial), (1,)] if b.forms.get("rows") == "width" else [(), (0, *spatial), (), (1,)]
    value = b.stored_as(x, places)
    acc = b.emit(
        "DEPTHWISE_CONV2D", value, b.const(codes.reshape(1, 1, channels, 1), name="gain"),
        bias_codes(b, offset, scales, channels, x.qparams.dtype),
        pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), input_zp=x.qparams.zp, weight_zp=0,
    )  # fmt: skip
    stored = b.reshape(b.requantize(acc, scales, out), (x.shape[0], *x.shape[2:], channels))
    return QTensor(stored, ((0,), (x.rank - 1,), *((axis - 1,) for axis in spatial)), out)


def _normalized(b: Builder, x: QTensor, count: int, eps: float, centred: bool, out: QParams) -> QTensor:
    """out = (x - mean) / sqrt(var + eps) over the last ``count`` dims, or x / sqrt(mean(x**2) + eps) where not ``centred``.

    Sums are exact. Deviations have 7 bits below the code of x (none for int16), their squares as many as the sum leaves room
    for in 32 bits; the reciprocal root of a row comes from tables with 15 bits in each piece of its range.
    """
    axes = [axis for dims in x.dims[x.rank - count :] for axis in dims if x.value.shape[axis] > 1]
    rows = math.prod(x.shape[x.rank - count :])
    zp, codes, int8 = x.qparams.zp, x.qparams.qmax - x.qparams.qmin + 1, x.value.dtype == "INT8"
    fine = fineness(codes, rows) if centred or int8 else 1.0
    if centred:
        deviation = deviations(b, x, axes, fine)
        square, units = sum_of_squares(b, deviation, 0, axes, codes * fine)
        units /= fine * fine
    else:
        deviation = finer(b, x.value, zp, fine) if int8 else x.value
        square, units = sum_of_squares(b, x.value, zp, axes, codes)
    epsilon = eps / x.qparams.step**2
    lowest, highest = max(epsilon, 0.25 / rows), (codes / (1 if not centred else 2)) ** 2 + epsilon

    def variance(v: np.ndarray) -> np.ndarray:
        """In codes of x, of a sum of squares."""
        return np.maximum(v * (units / rows) + epsilon, lowest)

    bounds = [(bound - epsilon) * rows / units for bound in pieces(lowest, highest, 64.0)]
    if int8:
        # Twice its fourth root, which has 15 bits over the whole range of variances: two products of INT16, free of passes.
        largest = lowest**-0.25
        root = function_of(b, square, lambda v: variance(v) ** -0.25, bounds, largest / 32767, dtype="INT16")
        reach = _reach(max(out.qmax - out.zp, out.zp - out.qmin) * out.step, codes, highest**-0.25, largest) / 32767
        half = b.rescale(product(b, deviation, root), largest / 32767 / fine / reach, dtype="INT16")
        return QTensor(b.requantize(product(b, half, root), largest / 32767 * reach, out), x.dims, out)
    unit = math.sqrt(rows) * fine * (2 if centred else 4) / 2.0**30
    root = function_of(b, square, lambda v: 1 / np.sqrt(variance(v)), bounds, unit)
    wide = b.rescale(deviation, 1.0, input_zp=0 if centred else zp, dtype="INT32")
    acc = b.emit("MUL", wide, root, shift=0)
    return QTensor(b.requantize(acc, unit / fine, out), x.dims, out)


def _reach(bound: float, furthest: float, low: float, high: float) -> float:
    """The largest d * r that matters: r from ``low`` to ``high``, d up to ``furthest``, and d * r * r up to ``bound``."""
    corner = min(max(math.sqrt(bound / furthest), low), high)
    return 1.01 * min(bound / corner, furthest * corner)


@op(
    "aten.layer_norm.default", quant=EACH_INPUT, bound16=2,
    also={"aten.native_layer_norm.default": lambda x, shape, w, bias, eps: ((x, shape, w, bias, eps), {})},
    samples=[
        Sample(I8(1, 5, 32), [32]), Sample(I8(2, 7, 24, low=-1.0, high=5.0), [24], W(24, low=0.5), W(24)),
        Sample(I8(3, 16), [16], W(16, low=0.5)), Sample(I8(2, 4, 6, 5), [6, 5], W(6, 5), W(6, 5)), Sample(I8(9), [9]),
    ],
)  # fmt: skip
def layer_norm(
    b: Builder, x: QTensor, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False,
    *, out: QParams,
) -> QTensor:  # fmt: skip
    """out = (x - mean) / sqrt(var + eps) over the last dims, int8 or int16; gamma and beta are decomposed off."""
    return _normalized(b, x, len(shape), eps, True, out)


@op(
    "aten.rms_norm.default", quant=EACH_INPUT, bound16=3,
    samples=[Sample(I8(2, 5, 32), [32]), Sample(I8(1, 7, 24, low=-1.0, high=5.0), [24], W(24, low=0.5), 1e-5), Sample(I8(8), [8])],
)  # fmt: skip
def rms_norm(
    b: Builder, x: QTensor, shape: Sequence[int], weight: Any = None, eps: float | None = None, *, out: QParams
) -> QTensor:
    """out = x / sqrt(mean(x**2) + eps) over the last dims, int8 or int16; gamma is decomposed off."""
    return _normalized(b, x, len(shape), _EPS if eps is None else eps, False, out)


_EPS = float(torch.finfo(torch.float32).eps)


@layer_norm.check
def _(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False) -> Reason | None:
    return None if weight is None and bias is None else _AFFINE


@rms_norm.check
def _(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Reason | None:
    return None if weight is None else _AFFINE


_AFFINE = Reason("norm.affine", "its gamma and beta are still part of it", "Let EthosUQuantizer quantize it: it takes them apart.")


def _affine(s: Sketch, x: Node, weight: Node | None, bias: Node | None) -> Node:
    """x * weight + bias per channel (dim 1), as a batch norm of mean 0 and variance 1, which training leaves as it is."""
    if weight is None and bias is None:
        return x
    channels = shape_of(x)[1]
    zeros, ones = s.constant(torch.zeros(channels)), s.constant(torch.ones(channels))
    return s(aten.native_batch_norm.default, x, weight, bias, zeros, ones, False, 0.1, 0.0)[0]


def _flat_parameter(s: Sketch, x: Node | None) -> Node | None:
    return x if x is None or len(shape_of(x)) == 1 else s.flattened(x)


@layer_norm.decomposition
def _(
    s: Sketch, x: Node, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> Any:
    if weight is None and bias is None:
        return None if s.node.target is aten.layer_norm.default else s(aten.layer_norm.default, x, shape, None, None, eps)
    full = shape_of(x)
    core = s(aten.layer_norm.default, x, shape, None, None, eps)
    rows = s(aten.reshape.default, core, [-1, math.prod(shape)])
    return s(aten.reshape.default, _affine(s, rows, _flat_parameter(s, weight), _flat_parameter(s, bias)), list(full))


@rms_norm.decomposition
def _(s: Sketch, x: Node, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    if weight is None:
        return None
    rows = s(aten.reshape.default, s(aten.rms_norm.default, x, shape, None, eps), [-1, math.prod(shape)])
    return s(aten.reshape.default, _affine(s, rows, _flat_parameter(s, weight), None), list(shape_of(x)))


@composite(
    "aten.group_norm.default", bound16=5,
    also={"aten.native_group_norm.default": lambda x, w, bias, n, c, hw, groups, eps: ((x, groups, w, bias, eps), {})},
    samples=[
        Sample(I8(1, 8, 5, 4), 2, W(8, low=0.5), W(8)), Sample(I8(2, 6, 7), 3), Sample(I8(1, 4, 3, 3), 4, None, W(4)),
        Sample(I8(3, 6), 2, W(6, low=0.5), W(6)), Sample(I8(1, 6, 40, 40), 1, W(6, low=0.5), W(6)),
    ],
)  # fmt: skip
def group_norm(s: Sketch, x: Node, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True) -> Any:
    """A layer norm over each group of channels and the map, then gamma and beta per channel."""
    full = shape_of(x)
    width = math.prod(full[1:]) // groups
    core = s(aten.layer_norm.default, s(aten.reshape.default, x, [full[0] * groups, width]), [width], None, None, eps)
    return _affine(s, s(aten.reshape.default, core, list(full)), weight, bias)


@composite(
    "aten.instance_norm.default",
    samples=[
        Sample(I8(1, 4, 6, 5), W(4, low=0.5), W(4), None, None, True, 0.1, 1e-5, False),
        Sample(I8(2, 3, 8), None, None, None, None, True, 0.1, 1e-5, False),
        Sample(I8(1, 3, 4, 4), W(3), W(3), W(3), W(3).positive(), False, 0.1, 1e-5, False),
    ],
)  # fmt: skip
def instance_norm(
    s: Sketch, x: Node, weight: Any, bias: Any, mean: Any, var: Any, use_input_stats: bool, momentum: float, eps: float, cudnn: bool
) -> Any:
    """A layer norm over each channel's map, then gamma and beta; with running statistics, a batch norm."""
    if not use_input_stats:
        return s(aten.native_batch_norm.default, x, weight, bias, mean, var, False, momentum, eps)[0]
    return group_norm.decompose(s, x, shape_of(x)[1], weight, bias, eps)  # type: ignore[misc]

@composite(
    "aten._native_batch_norm_legit.no_stats", bound16=2,
    samples=[Sample(I8(2, 4, 6, 5), W(4, low=0.5), W(4), True, 0.1, 1e-5), Sample(I8(1, 3, 8), None, None, True, 0.1, 1e-5)],
)  # fmt: skip
def batch_statistics_norm(
    s: Sketch, x: Node, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> list[Node | None]:
    """(a layer norm over each channel of the whole batch, then gamma and beta; None; None): what instance norm becomes in edge."""
    n, channels, *rest = shape_of(x)
    order = [1, 0, *range(2, len(rest) + 2)]
    count = n * math.prod(rest)
    rows = s(aten.reshape.default, s(aten.permute.default, x, order), [channels, count])
    core = s(aten.reshape.default, s(aten.layer_norm.default, rows, [count], None, None, eps), [channels, n, *rest])
    return [_affine(s, s(aten.permute.default, core, order), weight, bias), None, None]


# --- of floats --------------------------------------------------------------------------------------------------------------


@batch_norm.floats
def _(b: Builder, x: QTensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Real:
    gain = (1.0 if weight is None else np.asarray(weight, np.float64)) / np.sqrt(np.asarray(var, np.float64) + eps)
    offset = (0.0 if bias is None else np.asarray(bias, np.float64)) - np.asarray(mean, np.float64) * gain
    channels = (-1, *(1,) * (x.rank - 2))
    return Real.of(b, x) * gain.reshape(channels) + offset.reshape(channels)


@layer_norm.floats
def _(
    b: Builder, x: QTensor, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> Real:
    dims = range(x.rank - len(shape), x.rank)
    value = Real.of(b, x)
    deviation = value - value.mean(dims)
    made = deviation * ((deviation * deviation).mean(dims) + eps).rsqrt()
    made = made if weight is None else made * weight
    return made if bias is None else made + bias


@rms_norm.floats
def _(b: Builder, x: QTensor, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Real:
    value = Real.of(b, x)
    square = (value * value).mean(range(x.rank - len(shape), x.rank))
    made = value * (square + (_EPS if eps is None else eps)).rsqrt()
    return made if weight is None else made * weight

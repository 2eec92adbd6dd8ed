"""Batch, layer, group, instance and RMS norms. The last four apply gamma and beta with a batch norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FloatTensor
from ethorch.lower.builder.mantissas import Mantissas, exponent_of
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.builder.reductions import (
    REST_BITS,
    compute_in_pieces,
    deviations,
    exact_deviations,
    in_finer_steps,
    int32_product,
    steps_per_code,
    sum_of_exact_squares,
    sum_of_squares,
)
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.quant_rules import EACH_INPUT, FIRST_INPUT
from ethorch.lower.ops.samples import I8, Sample, W
from ethorch.lower.ops.spec import composite, op
from ethorch.lower.ops.weights import bias_codes
from ethorch.support.errors import Reason
from ethorch.tosa.ir import Value

aten = torch.ops.aten

#: Upper bound of sums of squares.
_LARGEST = 2.0**31 * 0.98
#: Bits of an int16 reciprocal root that a separate product applies. In a row of n elements, deviations reach sqrt(n) standard
#: deviations, so that a root whose product fits int32 loses log2(n) / 2 bits.
_ROOT_BITS = 7
#: Longest row whose root is precise enough without these bits.
_LONG = 1024


def batch_norm_of_floats(
    b: Builder, x: QTensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float, *, out: Result
) -> FloatTensor:
    gain = (1.0 if weight is None else np.asarray(weight, np.float64)) / np.sqrt(np.asarray(var, np.float64) + eps)
    offset = (0.0 if bias is None else np.asarray(bias, np.float64)) - np.asarray(mean, np.float64) * gain
    channels = (-1, *(1,) * (x.rank - 2))
    result: FloatTensor = FloatTensor.of(b, x) * gain.reshape(channels) + offset.reshape(channels)
    return result


def check_batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Reason | None:
    if not any(isinstance(parameter, QTensor) for parameter in (weight, bias, mean, var)):
        return None
    return Reason(
        "batch_norm.computed",
        "expected constant parameters and statistics, got a tensor that the model computes",
        "Quantize the model with EthosUQuantizer, which replaces the batch norm with products and sums.",
    )


def decompose_batch_norm(
    s: AtenBuilder, x: Node, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Node | list[Node | None] | None:
    if not any(map(_is_computed, (weight, bias, mean, var))):
        return None
    mean, var = (_along_channels(s, x, statistic) for statistic in (mean, var))
    root = s(aten.rsqrt.default, s(aten.add.Tensor, var, eps))
    result = _affine(s, s(aten.mul.Tensor, s(aten.sub.Tensor, x, mean), root), weight, bias)
    return result if isinstance(s.node.meta["val"], torch.Tensor) else [result, None, None]


@op(
    "aten._native_batch_norm_legit_no_training.default",
    quant=FIRST_INPUT,
    check=check_batch_norm,
    decompose=decompose_batch_norm,
    also={
        "aten.batch_norm.default": lambda x, w, bias, mean, var, training=False, momentum=0.1, eps=1e-5, cudnn=False: (
            (x, w, bias, mean, var, momentum, eps),
            {},
        ),
        "aten.native_batch_norm.default": lambda x, w, bias, mean, var, training, momentum, eps: (
            (x, w, bias, mean, var, momentum, eps),
            {},
        ),
    },
    floats=batch_norm_of_floats,
    samples=[
        Sample(I8(1, 6, 5, 5), W(6), W(6), W(6), W(6).positive(), 0.1, 1e-5),
        Sample(I8(2, 6, 5), None, None, W(6), W(6).positive(), 0.1, 1e-5),
    ],
)
def batch_norm(
    b: Builder, x: QTensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float, *, out: Result
) -> QTensor:
    """Return (x - mean) / sqrt(var + eps) * weight + bias per channel: int8[N,C,...] -> int8, rounded once.

    The operator becomes a 1x1 DEPTHWISE_CONV2D with weights up to 127 and one scale per channel, or products and sums if the model
    computes a parameter.
    """
    channels = x.shape[1]
    gain = np.asarray(1.0 if weight is None else weight, np.float64) / np.sqrt(np.asarray(var, np.float64) + eps)
    gain = np.broadcast_to(gain, channels)
    offset = (0.0 if bias is None else np.asarray(bias, np.float64)) - np.asarray(mean, np.float64) * gain
    # The offset must fit the accumulator.
    least = np.abs(offset) * 2.0 ** -(38 if x.qparams.dtype == "INT16" else 30)
    scales = [float(s) for s in np.maximum(x.qparams.step * np.maximum(np.abs(gain), 1e-12) / 127, least)]
    codes = np.rint(x.qparams.step * gain / scales).astype(np.int8)
    spatial = tuple(range(2, x.rank))
    value, bias_of_all = b.store_as(x, [(), (), (0, *spatial), (1,)]), np.broadcast_to(offset, channels)
    limits = b.limits.get("DEPTHWISE_CONV2D")
    parts, most = [], limits.ranges["ifm_c"].high if limits is not None and "ifm_c" in limits.ranges else channels
    for start in range(0, channels, most):  # a layer norm can have more channels than the NPU supports
        part = slice(start, min(start + most, channels))
        count = part.stop - start
        factors = b.const(codes[part].reshape(1, 1, count, 1), name="gain")
        bias_part = bias_codes(b, bias_of_all[part], scales[part], count, x.qparams.dtype)
        rows = value if count == channels else b.slice_axis(value, 3, start, count)
        acc = b.depthwise_conv2d(rows, factors, bias_part, input_zp=x.qparams.zp)
        parts.append(b.requantize(acc, scales[part], out.qparams))
    channels_last = parts[0] if len(parts) == 1 else b.emit("CONCAT", *parts, axis=3)
    stored = b.reshape(channels_last, (x.shape[0], *x.shape[2:], channels))
    return QTensor(stored, ((0,), (x.rank - 1,), *((axis - 1,) for axis in spatial)), out.qparams)


def _normalize(b: Builder, x: QTensor, count: int, eps: float, centred: bool, out: QParams) -> QTensor:
    # The result is (x - mean) / sqrt(var + eps) over the last ``count`` dims, or x / sqrt(mean(x**2) + eps) if not ``centred``.
    # - Sums are exact.
    # - Deviations have 7 fractional bits for int8 and none for int16. The int16 mean has 6, which are applied to the product.
    # - Squares of deviations have as many bits as their int32 sum permits.
    # - The reciprocal root of a row has 15 bits for int8. For long int16 rows, a separate product applies 7 more bits.
    return compute_in_pieces(
        b, x, range(x.rank - count, x.rank), lambda rows: _normalize_rows(b, rows, count, eps, centred=centred, out=out)
    )


def _normalize_rows(b: Builder, x: QTensor, count: int, eps: float, *, centred: bool, out: QParams) -> QTensor:
    axes = [axis for dims in x.dims[x.rank - count :] for axis in dims if x.value.shape[axis] > 1]
    rows = math.prod(x.shape[x.rank - count :])
    zp, codes, int8 = x.qparams.zp, x.qparams.code_count, x.value.dtype == "INT8"
    fine = steps_per_code(codes, rows)
    if centred and int8:
        deviation = deviations(b, x, axes, fine)
        square, units = sum_of_squares(b, deviation, 0, axes, codes * fine)
        units /= fine * fine
    elif centred:
        deviation, rest = exact_deviations(b, x, axes)
        square, units = sum_of_exact_squares(b, deviation, axes, codes)
    else:
        deviation = in_finer_steps(b, x.value, zp, fine) if int8 else b.rescale(x.value, 1.0, input_zp=zp, dtype="INT32")
        square, units = sum_of_squares(b, x.value, zp, axes, codes if int8 else codes / 2)
    # v * 2**k + epsilon in units of 2**-k * units / rows, below 2**31
    largest, epsilon = (codes if int8 and not centred else codes / 2) ** 2 * rows / units, eps / x.qparams.step**2 * rows / units
    shift = math.floor(math.log2(_LARGEST / (largest + epsilon)))
    scale = 2.0**shift
    least = max(math.ceil(scale * max(epsilon, 0.25 / units)), 2 if int8 else 1)  # 2**h of 2 is an INT16
    v = _add_epsilon(b, square, shift, round(scale * epsilon), least)
    mantissas, unit = Mantissas.of(b, v, 4), math.sqrt(rows / units * scale) * 2.0**-14.5  # 1 / deviation = unit * root * 2**h
    if int8:
        unit /= fine
        reach = 2.02 * min(max(out.qmax - out.zp, out.zp - out.qmin) * out.step, math.sqrt(rows)) / 32767  # twice the results
        scaled = b.rescale(int32_product(b, deviation, mantissas.power(b)), unit / reach, dtype="INT16")
        root = mantissas.look_up(b, _reciprocal_root)
        return QTensor(b.requantize(int32_product(b, scaled, root), reach / 32767, out), x.dims, out)
    bits = max(math.floor(math.log2(math.sqrt(rows) * 2 / unit)), exponent_of(least, 4))
    step, root = unit * 2.0 ** (bits - 30), mantissas.look_up_precisely(b, _reciprocal_root, 30)
    if rows > _LONG:
        root, below = _in_two_parts(b, root, mantissas, bits)
        part = b.rescale(b.emit("MUL", deviation, below, shift=0), 2.0**-_ROOT_BITS, dtype="INT32")
        acc = b.emit("ADD", b.emit("MUL", deviation, root, shift=0), part)
    else:
        root = mantissas.multiply(b, root, bits)
        acc = b.emit("MUL", deviation, root, shift=0)
    if centred:
        acc = b.emit("SUB", acc, b.emit("MUL", rest, b.rescale(root, 2.0**-REST_BITS, dtype="INT32"), shift=0))
    return QTensor(b.requantize(acc, step, out), x.dims, out)


def _reciprocal_root(mantissa: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 / np.sqrt(mantissa)


def _add_epsilon(b: Builder, square: Value, shift: int, epsilon: int, least: int) -> Value:
    constant = partial(b.const_like, square)
    v = square
    if shift > 0:
        v = b.emit("LOGICAL_LEFT_SHIFT", v, constant(shift))
    elif shift < 0:
        v = b.emit("ARITHMETIC_RIGHT_SHIFT", v, constant(-shift), round=True)
    if epsilon:
        v = b.emit("ADD", v, constant(epsilon))
    return v if epsilon >= least else b.emit("MAXIMUM", v, constant(least))


def _in_two_parts(b: Builder, root: Value, mantissas: Mantissas, bits: int) -> tuple[Value, Value]:
    # INT32 r and rest with r + rest / 128 = root / 2**(bits - h), where h is the exponent of ``mantissas``.
    most = bits - _ROOT_BITS  # of h, for which 128 * r fits 32 bits
    exponent = b.emit("MINIMUM", mantissas.exponent, b.const_like(root, most, name="most"))
    both = replace(mantissas, exponent=exponent).multiply(b, root, most)
    r = b.rescale(both, 2.0**-_ROOT_BITS, dtype="INT32")
    rest = b.emit("SUB", both, b.rescale(r, 2.0**_ROOT_BITS, dtype="INT32"))
    left = b.emit("SUB", mantissas.exponent, exponent)
    return b.emit("LOGICAL_LEFT_SHIFT", r, left), b.emit("LOGICAL_LEFT_SHIFT", rest, left)


def check_layer_norm(
    x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> Reason | None:
    return None if weight is None and bias is None else _AFFINE


def decompose_layer_norm(
    s: AtenBuilder, x: Node, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> Any:
    is_native = s.node.target is not aten.layer_norm.default
    if weight is None and bias is None and not is_native:
        return None
    result = s(aten.layer_norm.default, x, shape, None, None, eps)
    if weight is not None or bias is not None:
        rows = s(aten.reshape.default, result, [-1, math.prod(shape)])
        scaled = _affine(s, rows, _flat_parameter(s, weight), _flat_parameter(s, bias))
        result = s(aten.reshape.default, scaled, list(shape_of(x)))
    rank = len(shape_of(x))
    return [result, *_statistics(s, x, range(rank - len(shape), rank), eps, keepdim=True)] if is_native else result


def _statistics(s: AtenBuilder, x: Node, dims: Sequence[int], eps: float, *, keepdim: bool) -> list[Node | None]:
    # The second and third results of native norms: mean and 1 / sqrt(var + eps)
    mean = s(aten.mean.dim, x, list(dims), keepdim) if s.is_read(1) else None
    if not s.is_read(2):
        return [mean, None]
    var = s(aten.var.correction, x, list(dims), correction=0, keepdim=keepdim)
    return [mean, s(aten.rsqrt.default, s(aten.add.Tensor, var, eps))]


def layer_norm_of_floats(
    b: Builder,
    x: QTensor,
    shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn: bool = False,
    *,
    out: Result,
) -> FloatTensor:
    dims = range(x.rank - len(shape), x.rank)
    value = FloatTensor.of(b, x)
    deviation = value - value.mean(dims)
    y = deviation * ((deviation * deviation).mean(dims) + eps).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@op(
    "aten.layer_norm.default",
    quant=EACH_INPUT,
    bound=2,
    bound16=2,
    also={"aten.native_layer_norm.default": lambda x, shape, w, bias, eps: ((x, shape, w, bias, eps), {})},
    check=check_layer_norm,
    decompose=decompose_layer_norm,
    floats=layer_norm_of_floats,
    samples=[
        Sample(I8(1, 5, 32), [32]),
        Sample(I8(2, 7, 24, low=-1.0, high=5.0), [24], W(24, low=0.5), W(24)),
        Sample(I8(3, 16), [16], W(16, low=0.5)),
        Sample(I8(2, 4, 6, 5), [6, 5], W(6, 5), W(6, 5)),
        Sample(I8(9), [9]),
    ],
)
def layer_norm(
    b: Builder,
    x: QTensor,
    shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn: bool = False,
    *,
    out: Result,
) -> QTensor:
    """Compute (x - mean) / sqrt(var + eps) over the dims of ``shape``, followed by a batch norm with gamma and beta.

    The error bound is 2 because PyTorch rounds about 1% of values differently, and a large gamma doubles this difference.
    """
    return _normalize(b, x, len(shape), eps, True, out.qparams)


def check_rms_norm(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Reason | None:
    return None if weight is None else _AFFINE


def decompose_rms_norm(s: AtenBuilder, x: Node, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    if weight is None:
        return None
    rows = s(aten.reshape.default, s(aten.rms_norm.default, x, shape, None, eps), [-1, math.prod(shape)])
    return s(aten.reshape.default, _affine(s, rows, _flat_parameter(s, weight), None), list(shape_of(x)))


def rms_norm_of_floats(
    b: Builder, x: QTensor, shape: Sequence[int], weight: Any = None, eps: float | None = None, *, out: Result
) -> FloatTensor:
    value = FloatTensor.of(b, x)
    square = (value * value).mean(range(x.rank - len(shape), x.rank))
    y = value * (square + (_EPS if eps is None else eps)).rsqrt()
    return y if weight is None else y * weight


@op(
    "aten.rms_norm.default",
    quant=EACH_INPUT,
    bound=2,
    bound16=3,
    check=check_rms_norm,
    decompose=decompose_rms_norm,
    floats=rms_norm_of_floats,
    samples=[Sample(I8(2, 5, 32), [32]), Sample(I8(1, 7, 24, low=-1.0, high=5.0), [24], W(24, low=0.5), 1e-5), Sample(I8(8), [8])],
)
def rms_norm(b: Builder, x: QTensor, shape: Sequence[int], weight: Any = None, eps: float | None = None, *, out: Result) -> QTensor:
    """Compute x / sqrt(mean(x**2) + eps) over the dims of ``shape``, followed by a batch norm with gamma.

    See ``layer_norm`` for the error bound.
    """
    return _normalize(b, x, len(shape), _EPS if eps is None else eps, False, out.qparams)


_EPS = float(torch.finfo(torch.float32).eps)


_AFFINE = Reason(
    "norm.affine",
    "the norm applies gamma and beta itself; expected a separate batch norm that applies them",
    "Quantize the model with EthosUQuantizer, which moves gamma and beta to a batch norm.",
)


def _affine(s: AtenBuilder, x: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is None and bias is None:
        return x
    if any(map(_is_computed, (weight, bias))):
        product = x if weight is None else s(aten.mul.Tensor, x, _along_channels(s, x, weight))
        return product if bias is None else s(aten.add.Tensor, product, _along_channels(s, x, bias))
    channels = shape_of(x)[1]
    zeros, ones = s.constant(torch.zeros(channels)), s.constant(torch.ones(channels))
    return s.results(aten.native_batch_norm.default, x, weight, bias, zeros, ones, False, 0.1, 0.0)[0]


def _is_computed(parameter: Node | None) -> bool:
    # whether a parameter depends on inputs of the model
    pending, seen = [] if parameter is None else [parameter], set[Node]()
    while pending:
        node = pending.pop()
        if node.op == "placeholder":
            return True
        pending += [arg for arg in node.all_input_nodes if arg not in seen]
        seen.update(node.all_input_nodes)
    return False


def _along_channels(s: AtenBuilder, x: Node, parameter: Node) -> Node:
    return s(aten.reshape.default, parameter, [-1, *(1,) * (len(shape_of(x)) - 2)])


def _flat_parameter(s: AtenBuilder, x: Node | None) -> Node | None:
    return x if x is None or len(shape_of(x)) == 1 else s.flatten_parameter(x)


@composite(
    "aten.group_norm.default",
    bound16=3,
    also={"aten.native_group_norm.default": lambda x, w, bias, n, c, hw, groups, eps: ((x, groups, w, bias, eps), {})},
    samples=[
        Sample(I8(1, 8, 5, 4), 2, W(8, low=0.5), W(8)),
        Sample(I8(2, 6, 7), 3),
        Sample(I8(1, 4, 3, 3), 4, None, W(4)),
        Sample(I8(3, 6), 2, W(6, low=0.5), W(6)),
        Sample(I8(1, 6, 40, 40), 1, W(6, low=0.5), W(6)),
    ],
)
def group_norm(
    s: AtenBuilder, x: Node, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> Any:
    """Return (x - mean) / sqrt(var + eps) * weight + bias, using layer and batch norms. Statistics are per group of channels."""
    full = shape_of(x)
    width = math.prod(full[1:]) // groups
    rows = s(aten.reshape.default, x, [full[0] * groups, width])
    core = s(aten.layer_norm.default, rows, [width], None, None, eps)
    result = _affine(s, s(aten.reshape.default, core, list(full)), weight, bias)
    if s.node.target is not aten.native_group_norm.default:
        return result
    return [result, *_statistics(s, s(aten.reshape.default, x, [full[0], groups, width]), [2], eps, keepdim=False)]


@composite(
    "aten.instance_norm.default",
    samples=[
        Sample(I8(1, 4, 6, 5), W(4, low=0.5), W(4), None, None, True, 0.1, 1e-5, False),
        Sample(I8(2, 3, 8), None, None, None, None, True, 0.1, 1e-5, False),
        Sample(I8(1, 3, 4, 4), W(3), W(3), W(3), W(3).positive(), False, 0.1, 1e-5, False),
    ],
)
def instance_norm(
    s: AtenBuilder,
    x: Node,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Any:
    """Return (x - mean) / sqrt(var + eps) * weight + bias, using layer and batch norms. Statistics are per feature map.

    Running statistics require only a batch norm.
    """
    if not use_input_stats:
        return s.results(aten.native_batch_norm.default, x, weight, bias, mean, var, False, momentum, eps)[0]
    return group_norm(s, x, shape_of(x)[1], weight, bias, eps)


@composite(
    "aten._native_batch_norm_legit.no_stats",
    bound16=2,
    samples=[Sample(I8(2, 4, 6, 5), W(4, low=0.5), W(4), True, 0.1, 1e-5), Sample(I8(1, 3, 8), None, None, True, 0.1, 1e-5)],
)
def batch_statistics_norm(
    s: AtenBuilder, x: Node, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> list[Node | None]:
    """Compute (x - mean) / sqrt(var + eps) * weight + bias, using layer and batch norms. Statistics are per channel of the batch.

    The operator's other outputs, the mean and the reciprocal standard deviation, are not computed. In an edge program, an
    instance norm becomes this operator.
    """
    n, channels, *rest = shape_of(x)
    order = [1, 0, *range(2, len(rest) + 2)]
    count = n * math.prod(rest)
    rows = s(aten.reshape.default, s(aten.permute.default, x, order), [channels, count])
    core = s(aten.reshape.default, s(aten.layer_norm.default, rows, [count], None, None, eps), [channels, n, *rest])
    return [_affine(s, s(aten.permute.default, core, order), weight, bias), None, None]

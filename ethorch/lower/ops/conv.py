"""Convolutions over one to three axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.builder.window import Window
from ethorch.lower.fx.aten_builder import value_of
from ethorch.lower.fx.node import arguments, op_name, tensor_of
from ethorch.lower.ops.conv2d import conv2d
from ethorch.lower.ops.conv3d import conv3d
from ethorch.lower.ops.conv_transpose import conv_transpose, conv_transpose3d
from ethorch.lower.ops.quant_rules import Layer, QuantRule
from ethorch.lower.ops.samples import I8, Sample, W
from ethorch.lower.ops.spec import op
from ethorch.lower.ops.weights import Filters
from ethorch.support.errors import Reason


def _convolution(x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    return (x, w, bias, stride, padding, dilation, False, 0, groups), {}


def _convolution_transposed(
    x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
) -> Any:
    return (x, w, bias, stride, padding, dilation, True, output_padding, groups), {}


def _convolution_same(
    x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: str = "valid", dilation: Any = 1, groups: int = 1
) -> Any:
    pads: Any = 0
    if padding == "same":
        pads = [((span - 1) // 2, span // 2) for span in Window.of(w.shape[2:], dilation=dilation).span]
    return (x, w, bias, stride, pads, dilation, False, 0, groups), {}


def check_convolution(
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Reason | None:
    if not isinstance(w, QTensor):
        return Reason(
            "graph.weight_not_quantized",
            "the weight is float; expected a quantized weight",
            "Configure the quantizer to quantize the operator's module.",
        )
    if not w.value.is_const:
        return Reason(
            "convolution.dynamic_weight",
            "the weight is computed at run time; expected a constant weight",
            "Make the weight a parameter or buffer. For computed weights, apply torch.matmul to shifted slices of the input.",
        )
    return None


def _rule(node: Node) -> QuantRule:
    (x, w, *rest), _ = arguments(node)
    while w.op != "get_attr" and "val" not in w.meta:  # observers, or nodes that convert_pt2e inserted
        w = w.all_input_nodes[0]
    weight = value_of(w) if "val" in w.meta else tensor_of(w.graph.owning_module, w)
    canonical, _ = convolution.canonical(op_name(node.target), (x, weight, *rest), {})
    _, weight, _, stride, padding, dilation, transposed, _, groups = canonical
    kernel = weight.shape[2:]
    channels = -1 - len(kernel)
    if transposed:
        return QuantRule(layer=Layer(weight_axis=1 if groups == 1 else None, output_axis=channels, groups=groups))
    return QuantRule(layer=Layer(output_axis=channels, groups=groups, window=Window.of(kernel, stride, padding, dilation)))


@op(
    "aten.convolution.default",
    quant=_rule,
    also={
        "aten.conv1d.default": _convolution,
        "aten.conv2d.default": _convolution,
        "aten.conv1d.padding": _convolution_same,
        "aten.conv2d.padding": _convolution_same,
        "aten.conv3d.default": _convolution,
        "aten.conv3d.padding": _convolution_same,
        "aten.conv_transpose1d.default": _convolution_transposed,
        "aten.conv_transpose2d.input": _convolution_transposed,
        "aten.conv_transpose3d.input": _convolution_transposed,
    },
    check=check_convolution,
    samples=[
        Sample(I8(1, 8, 9, 7), W(16, 8, 3, 3), W(16), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 3, 15, 16), W(8, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 3, 16, 14), W(8, 3, 3, 3), W(8), [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(2, 5, 6, 6), W(7, 5, 1, 1), W(7), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 16, 12, 12), W(16, 1, 3, 3), W(16), [2, 2], [1, 1], [1, 1], False, [0, 0], 16),
        Sample(I8(1, 8, 12, 12), W(16, 1, 3, 3), W(16), [1, 1], [2, 2], [2, 2], False, [0, 0], 8),
        Sample(I8(1, 12, 8, 8), W(18, 4, 3, 3), W(18), [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
        Sample(I8(1, 4, 11, 9), W(6, 4, 4, 2), W(6), [3, 2], [1, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 40, 3, 3), W(72, 40, 1, 1), W(72), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 6, 20), W(4, 6, 3), W(4), [1], [1], [1], False, [0], 1),
        Sample(I8(1, 3, 16, 24), W(10, 3, 8, 8), W(10), [8, 8], [0, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 5, 19, 17), W(6, 5, 7, 5), W(6), [4, 5], [3, 2], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 6, 17, 13), W(6, 1, 3, 3), W(6), [4, 4], [1, 1], [1, 1], False, [0, 0], 6),
        Sample(I8(1, 8, 5, 4), W(8, 6, 2, 2), W(6), [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
        Sample(I8(1, 4, 6, 5), W(4, 6, 3, 3), W(6), [1, 1], [1, 1], [1, 1], True, [0, 0], 1),
        Sample(I8(2, 4, 5, 6), W(4, 7, 3, 3), W(7), [2, 2], [1, 1], [1, 1], True, [0, 1], 1),
        Sample(I8(1, 4, 5, 6), W(4, 7, 4, 3), W(7), [2, 2], [1, 0], [1, 1], True, [0, 1], 1),
        Sample(I8(1, 4, 5, 6), W(4, 3, 5, 3), W(3), [3, 4], [1, 1], [1, 1], True, [0, 0], 1),
        Sample(I8(1, 6, 5, 4), W(6, 1, 4, 4), W(6), [2, 2], [1, 1], [1, 1], True, [0, 0], 6),
        Sample(I8(1, 6, 5, 4), W(6, 2, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 3),
        Sample(I8(1, 4, 9), W(4, 5, 4), W(5), [3], [1], [2], True, [1], 1),
        Sample(I8(1, 3, 5, 6, 7), W(8, 3, 3, 3, 3), W(8), [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
        Sample(I8(2, 2, 3, 6, 5), W(3, 2, 2, 3, 3), W(3), [2, 1, 2], [3, 1, 1], [1, 1, 2], False, [0, 0, 0], 1),
        Sample(I8(1, 6, 4, 2, 3), W(5, 6, 3, 3, 3), W(5), [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
        Sample(I8(1, 4, 7, 6, 6), W(4, 2, 2, 3, 3), W(4), [2, 2, 1], [0, 1, 0], [2, 1, 1], False, [0, 0, 0], 2),
        Sample(I8(1, 4, 4, 6, 6), W(4, 1, 3, 3, 3), W(4), [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 4),
        Sample(I8(1, 3, 2, 4, 3), W(3, 5, 3, 3, 2), W(5), [1, 1, 1], [2, 1, 0], [2, 1, 1], True, [0, 0, 0], 1),
        Sample(I8(2, 4, 3, 4, 3), W(4, 3, 3, 2, 3), W(6), [2, 2, 2], [1, 0, 1], [1, 1, 1], True, [1, 0, 1], 2),
        Sample(I8(1, 2, 3, 3, 4), W(2, 2, 1, 3, 3), None, [3, 2, 1], [0, 1, 1], [1, 1, 1], True, [0, 1, 0], 1),
        Sample(I8(1, 4, 4, 3, 5), W(4, 1, 2, 4, 4), W(4), [2, 2, 2], [0, 1, 1], [1, 1, 1], True, [0, 0, 0], 4),
        Sample(I8(4, 9, 7), W(6, 4, 3, 3), W(6), [2], [1]).of("aten.conv2d.default"),
        Sample(I8(4, 20), W(6, 2, 3), W(6), groups=2).of("aten.conv1d.default"),
        Sample(I8(4, 5, 4), W(4, 6, 2, 2), W(6), [2]).of("aten.conv_transpose2d.input"),
    ],
)
def convolution(
    b: Builder,
    x: QTensor,
    w: QTensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *,
    out: Result,
) -> QTensor:
    """Compute out[n,o,i,j] = bias[o] + sum over c, k, l of x[n,c,i+k,j+l] * w[o,c,k,l]: int8[N,C,H,W] -> int8[N,O,OH,OW].

    The formula omits stride, padding, dilation and groups. The result is computed exactly in int32 (int48 for int16) and rounded
    once.

    TOSA CONV2D, DEPTHWISE_CONV2D, TRANSPOSE_CONV2D.
    """
    filters = Filters.of(x, w, bias, out.shape[1 - len(w.shape)])
    window = Window.of(filters.codes.shape[2:], stride, padding, dilation)
    axes = len(window.kernel)

    def as_map(shape: tuple[int, ...]) -> tuple[int, ...]:
        batch, channels, places = shape[: -axes - 1] or (1,), shape[-axes - 1], shape[-axes:]
        return (*batch, channels, *((1,) if axes == 1 else ()), *places)

    if axes == 1:
        filters, window = filters.with_codes(filters.codes[:, :, None]), Window.of((1,)) + window
    if transposed:
        over = conv_transpose3d if axes == 3 else conv_transpose
    else:
        over = conv3d if axes == 3 else conv2d
    shape = as_map(x.shape)
    if shape == x.shape:  # a view would cost up to 2% more cycles
        return over(b, x, filters, window, groups, out)
    return b.view(over(b, b.view(x, shape), filters, window, groups, replace(out, shape=as_map(out.shape))), out.shape)

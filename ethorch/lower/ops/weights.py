"""Quantized weights and biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.lower.builder.window import Window
from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa.ir import DTYPES, FLOATS, Value

#: Maximum number of positions that Vela runs as one 1x1 CONV2D.
MOST_PLACES = 65536
#: Maximum batch size of a 1x1 DEPTHWISE_CONV2D that is not reshaped to one row. Vela writes 20 bytes for each feature map.
MOST_MAPS = 256
#: Number of channels that one convolution repeats. Of 32, 64, 128 and 1,024, this needed the fewest cycles and bytes in four of
#: five depthwise convolutions with 64 to 257 channels, INT8 and INT16 (u55-128).
_SECTION = 32


@dataclass(frozen=True)
class Filters:
    """The weights and bias of a convolution.

    Attributes:
        codes: Integer (int8) or float weights. Each method documents the order of axes that it expects.
        zero_point: Zero point of the weights.
        bias: Real values, one for each output channel.
        scales: Scales of the accumulators, one for each output channel.
        input: Quantization parameters of the input.
    """

    codes: npt.NDArray[Any]
    zero_point: int
    bias: npt.NDArray[Any]
    scales: tuple[float, ...]
    input: QParams

    @staticmethod
    def of(x: QTensor, w: QTensor, bias: Any, channels: int) -> Filters:
        """Return the filters for the input ``x``. The weights ``w`` are in PyTorch's order."""
        real = np.zeros(channels) if bias is None else real_values(bias)
        return Filters(weight_array(w), w.qparams.zero_point[0], real, tuple(accumulator_scales(x, w, channels)), x.qparams)

    def with_codes(self, codes: npt.NDArray[Any], channels: npt.NDArray[np.intp] | slice | None = None) -> Filters:
        """Return filters with the weights ``codes``, and the bias and scales of ``channels`` (default: all)."""
        if channels is None:
            return Filters(codes, self.zero_point, self.bias, self.scales, self.input)
        scales = np.asarray(self.scales)[channels].tolist()
        return Filters(codes, self.zero_point, self.bias[channels], tuple(scales), self.input)

    def without_bias(self) -> Filters:
        return Filters(self.codes, self.zero_point, np.zeros_like(self.bias), self.scales, self.input)

    def bias_codes(self, b: Builder) -> Value:
        return bias_codes(b, self.bias, self.scales, len(self.scales), self.input.dtype)

    def bias_in_shape(self, b: Builder, shape: tuple[int, ...], out: QParams) -> Value:
        """Return the requantized bias as a constant of ``shape``, with channels last."""
        bias = self.bias_codes(b)
        assert bias.data is not None
        return self.requantize(b, b.const(np.broadcast_to(bias.data, shape).copy(), bias.dtype, name="bias"), out)

    def requantize(self, b: Builder, acc: Value, out: QParams) -> Value:
        return b.requantize(acc, self.scales if len(set(self.scales)) > 1 else self.scales[:1], out)

    def conv2d(self, b: Builder, value: Value, window: Window | None, out: QParams) -> Value:
        """Convolve an NHWC value with weights [O,KH,KW,C] and requantize. TOSA CONV2D.

        For a 1x1 convolution, a batch with more than ``MOST_PLACES`` positions is first reshaped to one row.
        """
        if math.prod(value.shape[:3]) > MOST_PLACES and self._reads_single_places(value, window, (1, 2)):
            row = self.conv2d(b, b.reshape(value, (1, 1, math.prod(value.shape[:3]), value.shape[3])), None, out)
            return b.reshape(row, (*value.shape[:3], len(self.codes)))
        weight = b.const(np.ascontiguousarray(self.codes), name="weight")
        acc = b.conv2d(value, weight, self.bias_codes(b), window=window, input_zp=self.input.zp, weight_zp=self.zero_point)
        return self.requantize(b, acc, out)

    def depthwise_conv2d(self, b: Builder, value: Value, window: Window | None, out: QParams) -> Value:
        """Convolve an NHWC value with weights [KH,KW,C,M] and requantize. TOSA DEPTHWISE_CONV2D.

        For Ethos-U, the input channels are first repeated if M > 1 (``Tuning.repeats_channels``). For a 1x1 convolution, a batch of
        more than ``MOST_MAPS`` feature maps is first reshaped to one row.
        """
        channels, each = self.codes.shape[2:]
        if value.shape[0] > MOST_MAPS and self._reads_single_places(value, window, (0, 1)):
            row = self.depthwise_conv2d(b, b.reshape(value, (1, 1, math.prod(value.shape[:3]), channels)), None, out)
            return b.reshape(row, (*value.shape[:3], channels * each))
        filters = self
        if each > 1 and b.tuning.repeats_channels:
            value = self._repeat_channels(b, value, each)
            filters = self.with_codes(self.codes.reshape(*self.codes.shape[:2], channels * each, 1))
        return filters.requantize(b, filters.depthwise(b, value, window), out)

    def _repeat_channels(self, b: Builder, value: Value, count: int) -> Value:
        parts = []
        for first in range(0, value.shape[3], _SECTION):
            channels = min(_SECTION, value.shape[3] - first)
            ones = np.repeat(np.eye(channels, dtype=np.int8), count, axis=0)[:, None, None]
            copies = Filters(ones, 0, np.zeros(len(ones)), self.input.scale[:1] * len(ones), self.input)
            parts.append(copies.conv2d(b, b.slice_axis(value, 3, first, channels), None, self.input))
        return parts[0] if len(parts) == 1 else b.emit("CONCAT", *parts, axis=3)

    def _reads_single_places(self, value: Value, window: Window | None, axes: tuple[int, int]) -> bool:
        return (
            value.shape[0] > 1
            and self.codes.shape[axes[0]] == self.codes.shape[axes[1]] == 1
            and window in (None, Window.of((1, 1)))
        )

    def depthwise(self, b: Builder, value: Value, window: Window | None) -> Value:
        """Return the accumulator of ``depthwise_conv2d``."""
        weight = b.const(np.ascontiguousarray(self.codes), name="weight")
        return b.depthwise_conv2d(
            value, weight, self.bias_codes(b), window=window, input_zp=self.input.zp, weight_zp=self.zero_point
        )


def bias_codes(b: Builder, bias: Any, scales: Sequence[float], channels: int, activations: str = "INT8") -> Value:
    """Return round(bias / scales) as int32[O] (int48[O] for int16 activations), or ``bias`` unchanged for floats.

    Biases that exceed 32 bits for int32, or 40 bits for int48, are refused (Vela SUPPORTED_OPS, TOSA CONV2D).
    """
    real = np.zeros(channels) if bias is None else real_values(bias)
    if activations in FLOATS:
        return b.const(real.astype(DTYPES[activations]), activations, name="bias")
    codes = np.rint(real.astype(np.float64) / np.asarray(scales))
    dtype, most = ("INT48", 2**39 - 1) if activations == "INT16" else ("INT32", 2**31 - 1)
    fits = np.abs(codes) <= most
    if not fits.all():
        raise Unsupported(
            Reason(
                "bias.range",
                f"expected biases of at most {most:,} x input scale x weight scale, got {np.abs(codes).max():,.0f} x input scale x "
                f"weight scale, in output channels {np.flatnonzero(~fits)[:8].tolist()}",
                "Increase the weight scales of these channels, or quantize the float model with EthosUQuantizer, which does so.",
            )
        )
    return b.const(codes.astype(DTYPES[dtype]), dtype, name="bias")


def real_values(bias: Any) -> npt.NDArray[Any]:
    if not isinstance(bias, QTensor):
        return np.asarray(bias)
    q, data = bias.qparams, bias.value.data
    assert data is not None
    real: npt.NDArray[Any] = (data.astype(np.float64) - np.asarray(q.zero_point)) * np.asarray(q.scale)
    return real


def accumulator_scales(x: QTensor, w: QTensor, channels: int) -> list[float]:
    """Return the scale of the accumulator of each output channel."""
    scales = w.qparams.scale
    return [x.qparams.step * scale for scale in (scales if len(scales) == channels else scales * channels)]


def weight_array(w: QTensor) -> npt.NDArray[Any]:
    """Return a constant weight in PyTorch's dimension order."""
    data = w.value.data
    assert data is not None
    order = [axis for axes in w.dims for axis in axes]
    rest = [axis for axis in range(data.ndim) if axis not in order]
    return data.transpose(*order, *rest).reshape(w.shape)

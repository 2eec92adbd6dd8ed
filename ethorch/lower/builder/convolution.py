"""Builders of CONV2D and DEPTHWISE_CONV2D."""

from __future__ import annotations

import numpy as np

from ethorch.lower.builder.lookup import LookupBuilder
from ethorch.lower.builder.window import Window
from ethorch.tosa.ir import Value


class ConvolutionBuilder(LookupBuilder):
    def conv2d(
        self,
        value: Value,
        weight: Value,
        bias: Value | None = None,
        *,
        window: Window | None = None,
        input_zp: int = 0,
        weight_zp: int = 0,
    ) -> Value:
        """Return acc[N,OH,OW,O] = bias[O] + sum((value[N,H,W,C] - input_zp) * (weight[O,KH,KW,C] - weight_zp)).

        The default bias is 0. The default window has stride 1 and no padding.
        """
        return self._convolve("CONV2D", value, weight, bias, weight.shape[0], weight.shape[1:3], window, input_zp, weight_zp)

    def depthwise_conv2d(
        self,
        value: Value,
        weight: Value,
        bias: Value | None = None,
        *,
        window: Window | None = None,
        input_zp: int = 0,
        weight_zp: int = 0,
    ) -> Value:
        """Return acc[N,OH,OW,C*M] = bias[C*M] + sum(value[N,H,W,C] * weight[KH,KW,C,M]). See ``conv2d``."""
        channels, kernel = weight.shape[2] * weight.shape[3], weight.shape[:2]
        return self._convolve("DEPTHWISE_CONV2D", value, weight, bias, channels, kernel, window, input_zp, weight_zp)

    def no_bias(self, channels: int, dtype: str) -> Value:
        return self.const(np.zeros(channels, np.int64), "INT48") if dtype == "INT16" else self.const(np.zeros(channels, np.int32))

    def _convolve(
        self,
        name: str,
        value: Value,
        weight: Value,
        bias: Value | None,
        channels: int,
        kernel: tuple[int, ...],
        window: Window | None,
        input_zp: int,
        weight_zp: int,
    ) -> Value:
        window = window or Window.of(kernel)
        assert window.kernel == kernel, f"expected a window with kernel {kernel}, got {window.kernel}"
        bias = self.no_bias(channels, value.dtype) if bias is None else bias
        return self.emit(
            name,
            value,
            weight,
            bias,
            pad=window.pad,
            stride=window.stride,
            dilation=window.dilation,
            input_zp=input_zp,
            weight_zp=weight_zp,
        )

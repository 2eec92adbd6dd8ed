"""Observers of weights, per channel and per tensor."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import Tensor
from torchao.quantization.pt2e.observer import UniformQuantizationObserverBase

from ethorch.quantization.calibration_checks import check_method
from ethorch.support.errors import QuantizationError

logger = logging.getLogger(__name__)

#: Methods that choose the scale of a weight.
WEIGHT_METHODS = ("max", "mse")
#: Bits of a bias magnitude: half the range of biases (TOSA 1.0 CONV2D: int32; int48, of which the NPU has 40 bits).
_BIAS_BITS = {torch.int8: 30, torch.int16: 38}


def least_squares_scales(rows: Tensor, scales: Tensor, quant_min: int, quant_max: int, tried: int) -> Tensor:
    """Multiply each row's scale by the factor from 0.3 to 1 with the least squared error. ``tried`` is the number of candidates."""
    best, least = scales.clone(), torch.full_like(scales, math.inf)
    for factor in torch.linspace(0.3, 1.0, tried).tolist():
        trial = scales * factor
        codes = torch.clamp(torch.round(rows / trial[:, None]), quant_min, quant_max)
        error = ((codes * trial[:, None] - rows) ** 2).sum(1)
        best, least = torch.where(error < least, trial, best), torch.minimum(error, least)
    return best


class PerChannelWeightObserver(UniformQuantizationObserverBase):  # type: ignore[misc]  # torchao has no annotations
    """A weight observer with one scale per output channel.

    If bias / (input scale x weight scale) exceeds half the range of biases, the channel's scale is increased and a
    warning is logged.

    Args:
        method: ``max`` (largest magnitude) or ``mse`` (least squared error).
        ch_axis: Output channel axis.
        dtype, qscheme, quant_min, quant_max, eps: See torchao's observers.
    """

    min_val: Tensor
    max_val: Tensor

    def __init__(
        self,
        method: str = "max",
        ch_axis: int | None = 0,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_channel_symmetric,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = 2.0**-24,
        is_dynamic: bool = False,
        **kwargs: Any,
    ):
        super().__init__(dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max, eps=eps, **kwargs)
        check_method(method, WEIGHT_METHODS)
        self.method = method
        per_channel = qscheme in (torch.per_channel_symmetric, torch.per_channel_affine)
        self.ch_axis = ch_axis if per_channel and ch_axis is not None else 0
        self.per_channel = per_channel
        self.register_buffer("min_val", torch.tensor([]))
        self.register_buffer("max_val", torch.tensor([]))
        self.name = ""
        self.uses: list[tuple[Tensor, list[Any]]] = []  # (bias, [observer of the input])
        self.fixed: tuple[Tensor, Tensor] | None = None  # quantization parameters with which the weights were rounded
        self._weight: Tensor | None = None
        self._seen: tuple[int, int] | None = None

    def forward(self, w: Tensor) -> Tensor:
        """Observe ``w`` if it has changed, and return it."""
        seen = (w.data_ptr(), w._version)
        if seen != self._seen:
            rows = w.detach().transpose(0, self.ch_axis).flatten(1) if self.per_channel else w.detach().reshape(1, -1)
            low, high = rows.aminmax(dim=1)
            self.min_val, self.max_val = low.float(), high.float()
            self._weight, self._seen = w.detach(), seen
        return w

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """Return (scales, int32 zero points), with one element for each channel, or one element for a per-tensor weight."""
        if self.fixed is not None:
            return self.fixed
        if self._weight is None:
            raise QuantizationError(
                "calibration.none",
                f"{self.name or 'a weight'} was not observed. Run the prepared model on samples before convert_pt2e.",
            )
        scale, zero = self._calculate_qparams(self.min_val, self.max_val)
        if self.method == "mse":
            scale = self.least_squares(scale)
        return self.fit_bias(scale), zero

    def least_squares(self, scale: Tensor) -> Tensor:
        assert self._weight is not None
        rows = self._weight.transpose(0, self.ch_axis).flatten(1) if self.per_channel else self._weight.reshape(1, -1)
        return torch.maximum(least_squares_scales(rows, scale, self.quant_min, self.quant_max, 71), self.eps)

    def fit_bias(self, scale: Tensor) -> Tensor:
        """Increase scales until bias / (input scale x weight scale) fits in half the range of biases."""
        needed = torch.zeros_like(scale)
        for bias, (observer,) in self.uses:
            limit = float(1 << _BIAS_BITS.get(observer.dtype, 30))
            each = bias.detach().abs().float() / (float(observer.calculate_qparams()[0]) * limit)
            needed = torch.maximum(needed, each if self.per_channel else each.max().reshape(1))
        short = needed > scale
        if bool(short.any()):
            channels = torch.nonzero(short).flatten().tolist()
            logger.warning(
                "%s: bias / (input scale x weight scale) exceeds half the range of biases in channels %s. The weight "
                "scales of these channels are multiplied by up to %.3g, so that the bias fits. [bias.accumulator]",
                self.name or "a weight",
                channels[:8],
                float((needed / scale)[short].max()),
            )
        return torch.where(short, needed, scale)

    def extra_repr(self) -> str:
        return f"{self.method}, ch_axis={self.ch_axis if self.per_channel else None}"


class WeightObserver(PerChannelWeightObserver):
    """A weight observer with one scale. torchao passes per-channel arguments only to classes whose names start with PerChannel."""

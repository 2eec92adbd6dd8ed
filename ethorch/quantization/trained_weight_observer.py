from __future__ import annotations

import torch
from torch import Tensor
from torchao.quantization.pt2e import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver

from ethorch.quantization.weight_observer import least_squares_scales

_TRIED = 15  # number of scales to try in each step; more have no benefit, because the weights adapt


class PerChannelTrainedWeightObserver(MovingAveragePerChannelMinMaxObserver):  # type: ignore[misc]  # torchao has no annotations
    """An observer that selects, for each channel, the range with the least squared error for the current weight."""

    min_val: Tensor
    max_val: Tensor

    def forward(self, w: Tensor) -> Tensor:
        if w.numel():
            _keep_range(self, w.detach().transpose(0, self.ch_axis).flatten(1))
        return w


class TrainedWeightObserver(MovingAverageMinMaxObserver):  # type: ignore[misc]  # torchao has no annotations
    min_val: Tensor
    max_val: Tensor

    def forward(self, w: Tensor) -> Tensor:
        if w.numel():
            _keep_range(self, w.detach().reshape(1, -1))
        return w


def _keep_range(observer: PerChannelTrainedWeightObserver | TrainedWeightObserver, rows: Tensor) -> None:
    half = (observer.quant_max - observer.quant_min) / 2
    rows = rows.to(observer.min_val.dtype)
    largest = torch.maximum(rows.abs().amax(1) / half, observer.eps)
    bound = least_squares_scales(rows, largest, observer.quant_min, observer.quant_max, _TRIED) * half
    if isinstance(observer, TrainedWeightObserver):
        bound = bound.reshape(())
    observer.min_val.resize_(bound.shape).copy_(-bound)
    observer.max_val.resize_(bound.shape).copy_(bound)

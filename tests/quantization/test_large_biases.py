"""Biases that are large beside the weights of their channel, e.g. of a pruned channel after a batch norm was folded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ethorch


@pytest.mark.parametrize("scheme", ["int8", "a16w8"])
@pytest.mark.parametrize("module", [nn.Linear(8, 4), nn.Conv1d(8, 4, 1)], ids=["linear", "conv1d"])
def test_the_bias_of_a_channel_without_weights(module: nn.Module, scheme: str) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        module.weight[1], module.bias[1] = 0.0, 10.0
    samples = [2 * torch.rand(6, 8, *[3] * (module.weight.ndim - 2)) - 1 for _ in range(4)]
    program = ethorch.compile(module.eval(), samples[0], calibration=samples, settings=ethorch.Settings(scheme=scheme))
    assert torch.allclose(program(samples[0])[:, 1], module(samples[0])[:, 1], atol=0.1)

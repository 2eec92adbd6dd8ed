"""Biases that are large beside the weights of their channel, e.g. of a pruned channel after a batch norm was folded."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

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


@pytest.mark.parametrize("module", [nn.Linear(8, 4), nn.ConvTranspose2d(8, 4, 2)])
def test_a_bias_beyond_the_accumulator_of_another_quantizer_is_refused(module: nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        module.bias[1] = 1e6
    x = torch.rand(8) if isinstance(module, nn.Linear) else torch.rand(1, 8, 4, 4)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(module, (x,)).module(), quantizer)
    prepared(x)
    graph = convert_pt2e(prepared)
    program = ethorch.compile(graph, x, "ethos-u55-128")
    (row,) = (row for row in program.to_json()["cpu"] if row["id"] == "bias.range")
    assert "at most 2,147,483,647 x" in row["reason"] and row["reason"].endswith("in output channels [1]")
    assert torch.allclose(program(x), graph(x), rtol=1e-4)

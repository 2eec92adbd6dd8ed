"""Batch norms that were trained with rounded weights fold to what ``convert_pt2e`` makes of them, without its patterns."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

import ethorch
from ethorch.quantization.trained_batch_norms import fold_trained_batch_norms


class EveryKind(nn.Module):
    """float[N,1,8,8] -> [N,6,16]: a convolution of each kind, with and without bias, before a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.plain_norm = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.depthwise, self.depthwise_norm = nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.BatchNorm2d(8, eps=1e-3)
        self.transposed, self.transposed_norm = nn.ConvTranspose2d(8, 4, 2, 2), nn.BatchNorm2d(4)
        self.line, self.line_norm = nn.Conv1d(16, 6, 1), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.plain_norm(self.plain(x)))
        x = self.depthwise_norm(self.depthwise(x))
        x = torch.relu(self.transposed_norm(self.transposed(x)))
        x = x.reshape(-1, 16, 64)[:, :, :16]
        return self.line_norm(self.line(x))


def trained(model: nn.Module) -> GraphModule:
    """After a few steps, so that statistics and parameters are not what they began with."""
    torch.manual_seed(0)
    prepared = ethorch.tuning.prepare_qat(model.train(), torch.rand(8, 1, 8, 8))
    optimizer = torch.optim.SGD(prepared.parameters(), 0.05)
    for _ in range(4):
        optimizer.zero_grad()
        prepared(torch.rand(8, 1, 8, 8)).square().mean().backward()
        optimizer.step()
    ethorch.tuning.freeze_qat(prepared)  # a call in eval mode would move the ranges
    prepared.eval()
    return prepared


def norms(graph: GraphModule) -> list[str]:
    return [node.name for node in graph.graph.nodes if "batch_norm" in str(node.target)]


def test_every_kind_of_convolution_takes_its_batch_norm() -> None:
    prepared, images = trained(EveryKind()), torch.rand(8, 1, 8, 8)
    before = prepared(images)
    assert fold_trained_batch_norms(copy.deepcopy(prepared)) == len(norms(prepared)) == 4
    converted = ethorch.tuning.convert_qat(prepared)
    assert not norms(converted)
    assert ethorch.sqnr_db(before, converted(images)) > 40


@pytest.mark.long
def test_the_result_is_that_of_torchao() -> None:
    prepared, images = trained(EveryKind()), torch.rand(8, 1, 8, 8)
    wanted = convert_pt2e(copy.deepcopy(prepared))
    assert torch.equal(ethorch.tuning.convert_qat(prepared)(images), wanted(images))


class Behind(nn.Module):
    """A batch norm behind an activation, which no convolution can take."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.relu(self.convolution(x)))


def test_others_stay() -> None:
    prepared = trained(Behind())
    assert len(norms(prepared)) == 1
    assert fold_trained_batch_norms(prepared) == 0 and len(norms(prepared)) == 1

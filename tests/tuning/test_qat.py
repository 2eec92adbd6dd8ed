"""Quantization-aware training as a pair."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torchao.quantization.pt2e import allow_exported_model_train_eval

import ethorch
from ethorch.program.program import record_of
from ethorch.quantization.config import get_symmetric_quantization_config
from ethorch.support.errors import QuantizationError


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(32, 10)
    )


@cache
def prepared_once() -> GraphModule:
    return ethorch.tuning.prepare_qat(network().train(), torch.rand(16, 1, 8, 8))


def prepare() -> GraphModule:
    """The network, prepared for batches of any size. Preparing takes seconds, a copy does not."""
    prepared = copy.deepcopy(prepared_once())
    allow_exported_model_train_eval(prepared)
    return prepared


def step(model: nn.Module, images: Tensor, labels: Tensor, rate: float = 0.05) -> float:
    optimizer = torch.optim.SGD(model.parameters(), rate)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return float(loss)


def test_a_model_trained_with_batches_runs_one_image_a_time() -> None:
    images, labels = torch.rand(32, 1, 8, 8), torch.randint(0, 10, (32,))
    prepared = prepare()
    losses = [step(prepared, images, labels) for _ in range(30)]
    assert losses[-1] < losses[0]
    ethorch.tuning.freeze_qat(prepared)
    for _ in range(5):
        step(prepared, images[:8], labels[:8], 0.001)
    prepared.eval()
    with torch.no_grad():
        trained = prepared(images)
    converted = ethorch.tuning.convert_qat(prepared, images[:1])
    with torch.no_grad():
        singly = torch.cat([converted(image[None]) for image in images])
    assert ethorch.sqnr_db(trained, singly) > 30
    program = ethorch.compile(converted, images[:1])
    assert record_of(program).build is not None and not record_of(program).build.partition.refusals
    assert ethorch.sqnr_db(singly, program(images)) > 30


def test_frozen_batch_norms_and_ranges_stay() -> None:
    images, labels = torch.rand(16, 1, 8, 8), torch.randint(0, 10, (16,))
    prepared = prepare()
    step(prepared, images, labels)
    ethorch.tuning.freeze_qat(prepared)
    prepared.eval()
    prepared.train()
    names = ("running_mean", "running_var", "scale", "zero_point")
    kept = {name: x.clone() for name, x in prepared.named_buffers() if name.endswith(names)}
    assert len(kept) > 6
    step(prepared, 3 * images, labels)
    assert all(torch.equal(kept[name], x) for name, x in prepared.named_buffers() if name in kept)


def test_without_freezing_they_move() -> None:
    images, labels = torch.rand(16, 1, 8, 8), torch.randint(0, 10, (16,))
    prepared = prepare()
    step(prepared, images, labels)
    (name, before), *_ = [(name, x.clone()) for name, x in prepared.named_buffers() if name.endswith("running_mean")]
    step(prepared, 3 * images, labels)
    assert not torch.equal(dict(prepared.named_buffers())[name], before)


def test_a_config_for_calibration_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r"config\.not_qat"):
        ethorch.tuning.prepare_qat(network(), torch.rand(2, 1, 8, 8), scheme=get_symmetric_quantization_config())


class FunctionalSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.linear(x), -1)


def test_an_operator_outside_modules_has_a_scheme(caplog: pytest.LogCaptureFixture) -> None:
    settings = ethorch.Settings(modules={"softmax": "a16w8", "linear": "int8"})
    prepared = ethorch.tuning.prepare_qat(FunctionalSoftmax(), torch.randn(8, 8), scheme="int8", settings=settings)
    prepared.train()
    prepared(torch.randn(8, 8))
    quantized = ethorch.tuning.convert_qat(prepared, torch.randn(1, 8))
    (result,) = [node.args[0][0] for node in quantized.graph.nodes if node.op == "output"]
    assert str(result.args[-1]) == "torch.int16" and "selection.no_match" not in caplog.text

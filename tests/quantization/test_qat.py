"""Quantization-aware training: parameters train, conv-bn-relu folds, and a coarse scheme gains over calibration alone."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torchao.quantization.pt2e import allow_exported_model_train_eval
from torchao.quantization.pt2e.fake_quantize import FakeQuantizeBase
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.backend.build import build_pte
from ethorch.quantization.config import QuantizationConfig
from tests.helpers.quantized import quantized, quantizer


class Digits(nn.Module):
    """float[N,1,8,8] -> 10 logits: two convolutions with batch normalization, a residual, in-place ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12))
        self.head = nn.Linear(12 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.relu(self.second(x) + x)
        return self.head(nn.functional.avg_pool2d(x, 2).flatten(1))


class Data:
    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self.images, self.labels = images[order], labels[order]

    TRAIN = 1200

    def train(self, model: nn.Module, epochs: int, rate: float) -> None:
        optimizer = torch.optim.Adam(model.parameters(), rate)
        generator = torch.Generator().manual_seed(1)
        for _ in range(epochs):
            order = torch.randperm(self.TRAIN, generator=generator)
            for batch in order.split(48):
                if len(batch) == 48:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(self.images[batch]), self.labels[batch]).backward()
                    optimizer.step()

    def accuracy(self, model: nn.Module) -> float:
        images, labels = self.images[self.TRAIN :], self.labels[self.TRAIN :]
        with torch.no_grad():
            found = [model(images[i : i + 48]).argmax(1) for i in range(0, 576, 48)]
        return float((torch.cat(found) == labels[:576]).float().mean())


def coarse(is_qat: bool) -> QuantizationConfig:
    """Ternary weights and four-bit activations: calibration alone loses 5 % of the digits."""
    return get_symmetric_quantization_config(
        is_per_channel=False, is_qat=is_qat, act_qmin=-8, act_qmax=7, weight_qmin=-1, weight_qmax=1
    )


@pytest.fixture(scope="module")
def data() -> Data:
    return Data()


@pytest.fixture(scope="module")
def trained(data: Data) -> Digits:
    torch.manual_seed(0)
    model = Digits()
    data.train(model.train(), 6, 3e-3)
    return model


def prepared_for_training(model: nn.Module, config: QuantizationConfig, batch: Tensor) -> GraphModule:
    graph = torch.export.export(copy.deepcopy(model).train(), (batch,)).module(check_guards=False)
    return prepare_qat_pt2e(graph, quantizer(config))


@pytest.fixture(scope="module")
def untouched(data: Data, trained: Digits) -> GraphModule:
    return prepared_for_training(trained, get_symmetric_quantization_config(is_qat=True), data.images[:48])


@pytest.fixture
def prepared(untouched: GraphModule) -> GraphModule:
    """The trained model, prepared for training in int8. Preparing takes seconds, a copy does not."""
    graph = copy.deepcopy(untouched)
    allow_exported_model_train_eval(graph)
    return graph


def test_training_gains_accuracy_over_calibration(data: Data, trained: Digits) -> None:
    batch = data.images[:48]
    assert data.accuracy(trained.eval()) > 0.93
    calibration = [(images,) for images in data.images[:480].split(48)]
    calibrated = quantized(copy.deepcopy(trained), calibration, quantizer(coarse(False))).module
    graph = prepared_for_training(trained, coarse(True), batch)
    allow_exported_model_train_eval(graph)
    graph.train()
    data.train(graph, 4, 2e-3)
    converted = ethorch.tuning.convert_qat(graph)
    gain = data.accuracy(converted) - data.accuracy(calibrated)
    assert gain > 0.01, (data.accuracy(converted), data.accuracy(calibrated))


def test_parameters_stay_parameters_and_get_gradients(data: Data, trained: Digits, prepared: GraphModule) -> None:
    parameters = dict(prepared.named_parameters())
    assert len(parameters) == len(dict(trained.named_parameters()))
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.SGD(prepared.parameters(), 0.1)
    nn.functional.cross_entropy(prepared(data.images[:48]), data.labels[:48]).backward()
    optimizer.step()
    moved = {name for name, p in parameters.items() if not torch.equal(p, before[name])}
    assert {name for name in parameters if name.endswith("weight")} <= moved
    assert {"head.bias", "second.1.bias", "first.1.bias"} <= moved


@pytest.mark.parametrize("convert", [ethorch.tuning.convert_qat, pytest.param(convert_pt2e, marks=pytest.mark.long)])
def test_batch_norm_folds_and_the_result_runs_on_the_npu(
    data: Data, prepared: GraphModule, convert: Callable[[GraphModule], GraphModule]
) -> None:
    prepared.train()
    data.train(prepared, 1, 1e-3)
    prepared.eval()
    converted = convert(prepared)
    names = [str(n.target) for n in converted.graph.nodes]
    assert not any("batch_norm" in name for name in names)
    assert data.accuracy(converted) > 0.93
    built = build_pte(converted, (data.images[:48],), EthosUCompileSpec("ethos-u85-256"))
    assert [str(refusal) for refusal in built.partition.refusals] == [] and len(built.delegates) == 1


def test_nothing_is_observed_between_convolution_and_batch_norm(prepared: GraphModule) -> None:
    modules = [n for n in prepared.graph.nodes if n.op == "call_module"]
    watched = {n.args[0].name for n in modules if isinstance(prepared.get_submodule(n.target), FakeQuantizeBase)}
    assert not any("conv" in name or "div" in name for name in watched), watched
    assert sum("batch_norm" in name for name in watched) == 1, "the first one's result is observed behind its ReLU"


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("method", [None, "mse"])
def test_few_levels_train_with_the_scale_of_least_error(per_channel: bool, method: str | None) -> None:
    """Three levels of which the outer ones are the largest weight leave most of a normal layer at zero."""
    weight = torch.randn(8, 300, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def trained(method: str | None) -> FakeQuantizeBase:
        config = get_symmetric_quantization_config(
            per_channel, is_qat=True, weight_qmin=-1, weight_qmax=1, weight_calibration=method
        )
        assert config.weight is not None
        made: FakeQuantizeBase = config.weight.observer_or_fake_quant_ctr()
        return made

    def error(fake: FakeQuantizeBase) -> float:
        return float((fake(weight) - weight).detach().square().mean())

    found = trained(method)
    assert error(found) < 0.25 < 0.7 < error(trained("max")), "0.19 is the least possible of normal values"
    restored = trained(method)
    restored.load_state_dict(found.state_dict())
    assert torch.equal(restored.calculate_qparams()[0], found.calculate_qparams()[0])
    found(weight).sum().backward()
    assert weight.grad is not None and bool((weight.grad != 0).float().mean() > 0.9)
    halved = float(found.calculate_qparams()[0].mean()) / 2
    found(weight / 2)
    assert float(found.calculate_qparams()[0].mean()) == pytest.approx(halved), "a scale follows its weight down"


class BestOf(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.linear, self.k = nn.Linear(16, 16), k

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.zeros_like(y).scatter(1, y.topk(self.k)[1], 1.0) * y


@pytest.mark.parametrize("config", [get_symmetric_quantization_config, get_symmetric_a16w8_quantization_config])
def test_elements_that_topk_has_chosen_extend_the_range_once(config: Callable[..., QuantizationConfig]) -> None:
    torch.manual_seed(0)
    graph = prepared_for_training(BestOf(4), config(is_qat=True), torch.randn(8, 16))
    for _ in range(4):
        output = graph(4 * torch.randn(8, 16))
    assert ((output != 0).sum(1) <= 4).all()
    scales = {str(node.args[0]): graph.get_submodule(str(node.target)).scale for node in graph.graph.find_nodes(op="call_module")}
    filled = [float(scales[name]) for name in ("masked_fill_scalar", "masked_fill_scalar_1", "masked_fill_scalar_2")]
    assert max(filled) < 1.1 * float(scales["linear"])

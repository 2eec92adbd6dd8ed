"""Smoothing keeps the float function, and gains where an activation has channels that outlie the others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.support.errors import QuantizationError, SpecError
from tests.helpers.decoders import Rotary

WIDTH = 32


class Block(nn.Module):
    """A normalization in front of three readers, SwiGLU behind another one that adds one to its weight."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = norm
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scale = nn.Parameter(torch.randn(WIDTH) * 0.1)
        self.gate, self.up = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48)
        self.down = nn.Linear(48, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = (
            x
            + torch.tanh(self.parts[0](y)) * torch.sigmoid(self.parts[1](y))
            + self.parts[2](y.reshape(2, -1, WIDTH)).reshape(x.shape)
        )
        z = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * (1.0 + self.scale)
        return x + self.down(nn.functional.silu(self.gate(z)) * self.up(z))


def with_outliers(model: Block) -> Block:
    """Three channels are thirty times as large, and read thirty times as faintly."""
    factors = torch.ones(WIDTH)
    factors[[3, 11, 20]] = 30.0
    with torch.no_grad():
        for parameter in model.norm.parameters():
            parameter.mul_(factors)
        for part in model.parts:
            part.weight.div_(factors)
    return model.eval()


SAMPLES = [(torch.randn(1, 8, WIDTH, generator=torch.Generator().manual_seed(seed)),) for seed in range(8)]


def quantized_db(model: nn.Module, exact: list[Tensor]) -> float:
    quantized = ethorch.quantize(model, SAMPLES[0], calibration=SAMPLES)
    with torch.no_grad():
        return ethorch.sqnr_db(exact, [quantized(*sample) for sample in SAMPLES])


@pytest.mark.parametrize("norm", [nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)], ids=["layer_norm", "rms_norm"])
def test_the_function_stays_and_outliers_no_longer_cost(norm: nn.Module) -> None:
    model = with_outliers(Block(norm))
    with torch.no_grad():
        exact = [model(*sample) for sample in SAMPLES]
    before = quantized_db(model, exact)
    done = ethorch.tuning.smooth(model, SAMPLES)
    assert {one.source for one in done} == {"norm.weight", "scale", "up.weight"}
    assert next(one.readers for one in done if one.source == "norm.weight") == (
        "parts.0.weight",
        "parts.1.weight",
        "parts.2.weight",
    )
    assert all(one.gain_db > 0 and 0 < one.strength < 1 for one in done)
    with torch.no_grad():
        assert ethorch.sqnr_db(exact, [model(*sample) for sample in SAMPLES]) > 100
    assert quantized_db(model, exact) > before + 6


class Elsewhere(nn.Module):
    """Nothing here may be changed: a norm that an addition reads too, tied weights, a layer used twice, no linear reader."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.twice, self.table = nn.Linear(WIDTH, WIDTH), nn.Embedding(12, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = self.twice(y) + y
        z = self.twice(torch.relu(self.other(y)))
        return nn.functional.linear(self.last(z), self.table.weight) + self.table(torch.zeros(1, 8, dtype=torch.int64)).sum(
            -1, True
        )


def test_what_something_else_uses_stays_as_it_is() -> None:
    model = Elsewhere().eval()
    before = copy.deepcopy(model.state_dict())
    assert ethorch.tuning.smooth(model, SAMPLES) == ()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class AddedElsewhere(nn.Module):
    """A factor with an added constant, which a second product reads."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.layer = nn.Parameter(torch.rand(16)), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.factor + 1
        return self.layer(x * factor), (x * x) * factor


def test_a_sum_that_something_else_uses_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model, samples = AddedElsewhere().eval(), [(torch.randn(1, 4, 16) * torch.linspace(0.1, 50, 16),) for _ in range(4)]
    before = [output.clone() for output in model(*samples[0])]
    assert ethorch.tuning.smooth(model, samples) == ()
    assert all(map(torch.equal, before, model(*samples[0])))


class Read(nn.Module):
    """One of two models with the same norm and layer."""

    def __init__(self, norm: nn.Module, layer: nn.Module, way: str) -> None:
        super().__init__()
        self.norm, self.layer, self.way = norm, layer, way

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x) if self.way != "layer alone" else x
        return self.layer(y) if self.way != "norm alone" else torch.sin(y)


@pytest.mark.parametrize(("way", "count"), [("both", 1), ("layer alone", 0), ("norm alone", 0)])
def test_models_that_share_have_to_agree(way: str, count: int) -> None:
    torch.manual_seed(0)
    norm, layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
    with torch.no_grad():
        norm.weight[5] = 40.0
        layer.weight[:, 5] /= 40.0
    models = {"one": Read(norm, layer, "both"), "two": Read(norm, layer, way)}
    calls: list[Any] = [("one", SAMPLES[0]), ("two", SAMPLES[1])]
    with torch.no_grad():
        exact = {name: model(*SAMPLES[2]) for name, model in models.items()}
    assert len(ethorch.tuning.smooth(models, [calls, calls])) == count
    with torch.no_grad():
        for name, model in models.items():
            torch.testing.assert_close(model(*SAMPLES[2]), exact[name], rtol=1e-4, atol=1e-5)


def test_a_decoder_with_caches_is_as_before() -> None:
    torch.manual_seed(0)
    model = Rotary(16, 1, 2, 1, vocabulary=20, rows=8).eval()
    calls = [(torch.tensor([[token]]), torch.tensor([place])) for place, token in enumerate((3, 5, 7))]
    with torch.no_grad():
        exact = [model(*inputs).clone() for inputs in calls]
        model.blocks[0].k.zero_()  # type: ignore[operator, union-attr]
        model.blocks[0].v.zero_()  # type: ignore[operator, union-attr]
    assert {one.source for one in ethorch.tuning.smooth(model, calls, scheme="a8w4")} <= {
        "blocks.0.norm.weight", "blocks.0.norm2.weight", "blocks.0.up.weight",
    }  # fmt: skip
    assert not model.blocks[0].k.any()  # type: ignore[operator, union-attr]
    with torch.no_grad():
        torch.testing.assert_close([model(*inputs).clone() for inputs in calls], exact, rtol=1e-4, atol=1e-5)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(QuantizationError, match="expected samples, got none"):
        ethorch.tuning.smooth(Block(nn.LayerNorm(WIDTH)), [])
    with pytest.raises(SpecError, match=r"expected scheme to be one of 'int8', .*, got 'int4'"):
        ethorch.tuning.smooth(Block(nn.LayerNorm(WIDTH)), SAMPLES, scheme="int4")

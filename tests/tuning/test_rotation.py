"""A rotation of the residual stream keeps the float function, and spreads what few channels have."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.support.errors import EthorchError
from ethorch.tuning.rotation import orthogonal

WIDTH, WORDS = 32, 40


class Block(nn.Module):
    """A mixer of tokens and SwiGLU, each behind a normalization."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.value, self.gate = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)
        self.mix, self.out = nn.Parameter(torch.randn(8, 8) * 0.3), nn.Linear(24, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.out(torch.matmul(self.mix, self.value(y)) * torch.sigmoid(self.gate(y)))
        return x + self.down(nn.functional.silu(self.up(self.norm2(x)[:, :])))


class Network(nn.Module):
    """Tokens to logits of the last one."""

    def __init__(self, norm: type[nn.Module] = nn.RMSNorm, tied: bool = False, places: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, WIDTH) if places else None
        self.blocks = nn.Sequential(Block(norm), Block(norm))
        self.norm, self.head = norm(WIDTH), nn.Linear(WIDTH, WORDS, bias=norm is nn.LayerNorm)
        for part in self.modules():
            if isinstance(part, (nn.RMSNorm, nn.LayerNorm)):
                nn.init.uniform_(part.weight, 0.5, 1.5)
                if isinstance(part, nn.LayerNorm):
                    nn.init.normal_(part.bias)
        if tied:
            self.head.weight = self.table.weight
        self.eval()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = x if self.places is None else x + self.places(torch.arange(8))
        return self.head(self.norm(self.blocks(x))[:, -1])


SAMPLES = [(torch.randint(WORDS, (1, 8), generator=torch.Generator().manual_seed(seed)),) for seed in range(8)]


def outputs(model: nn.Module) -> list[Tensor]:
    with torch.no_grad():
        return [model(*sample) for sample in SAMPLES]


@pytest.mark.parametrize("tied", (False, True))
@pytest.mark.parametrize("norm", (nn.RMSNorm, nn.LayerNorm))
def test_the_function_stays(norm: type[nn.Module], tied: bool) -> None:
    model = Network(norm, tied)
    exact, table = outputs(model), model.table.weight.detach().clone()
    done = ethorch.tuning.rotate(model, SAMPLES[0])
    assert done.refused == () and done.untied == (("head.weight",) if tied else ())
    assert {"table.weight", "places.weight", "blocks.1.down.weight", "blocks.0.value.weight"} <= set(done.parameters)
    assert not torch.allclose(model.table.weight, table, atol=0.1)
    assert torch.equal(model.blocks[0].norm.weight, torch.ones(WIDTH))  # type: ignore[union-attr]
    assert ethorch.sqnr_db(exact, outputs(model)) > 100


def test_a_channel_that_outlies_costs_no_longer() -> None:
    model = Network()
    with torch.no_grad():
        model.table.weight[:, 5] *= 60.0
        model.blocks[0].down.weight[5] *= 60.0  # type: ignore[union-attr, operator, index]
    exact = outputs(model)

    def quality() -> float:
        return ethorch.sqnr_db(exact, outputs(ethorch.quantize(model, SAMPLES[0], calibration=SAMPLES)))

    before = quality()
    ethorch.tuning.rotate(model, SAMPLES[0])
    assert quality() > before + 6


class Reads(Network):
    """Looks at its stream before any normalization."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.head(self.norm(x + torch.sin(x)))


class Ties(Network):
    """A layer that has no weight of its own."""

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.linear(self.norm(self.blocks(self.table(tokens))), self.table.weight)


@pytest.mark.parametrize(("kind", "why"), [(Reads, "sin"), (Ties, "table.weight is shared by an embedding and a layer")])
def test_what_cannot_be_turned_stays_and_is_said(kind: type[Network], why: str) -> None:
    model = kind(places=False)
    before = copy.deepcopy(model.state_dict())
    done = ethorch.tuning.rotate(model, SAMPLES[0])
    assert done.parameters == () and why in " ".join(done.refused)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Part(nn.Module):
    """One of two models with the same network."""

    def __init__(self, network: Network, way: str) -> None:
        super().__init__()
        self.network, self.way = network, way

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(tokens) if self.way == "whole" else self.network.table(tokens).sum(-1)


@pytest.mark.parametrize("way", ("whole", "table alone"))
def test_models_that_share_have_to_agree(way: str) -> None:
    network = Network()
    models = {"one": Part(network, "whole"), "two": Part(network, way)}
    exact = {name: outputs(model) for name, model in models.items()}
    done = ethorch.tuning.rotate(models, dict.fromkeys(models, SAMPLES[0]))
    assert bool(done.parameters) == (way == "whole")
    for name, model in models.items():
        torch.testing.assert_close(outputs(model), exact[name], rtol=1e-4, atol=1e-5)
    with pytest.raises(EthorchError, match="example inputs for each model"):
        ethorch.tuning.rotate(models, {"one": SAMPLES[0]})


@pytest.mark.parametrize(("width", "keeps_mean"), [(16, False), (24, False), (17, True), (24, True), (1, True)])
def test_matrices_are_orthogonal(width: int, keeps_mean: bool) -> None:
    turn = orthogonal(width, 3, keeps_mean=keeps_mean)
    torch.testing.assert_close(turn @ turn.t(), torch.eye(width, dtype=torch.float64))
    x: Any = torch.randn(5, width, dtype=torch.float64)
    if keeps_mean:
        torch.testing.assert_close((x @ turn).mean(1), x.mean(1))
    elif width == 16:
        assert turn.abs().max() <= 0.25 + 1e-12

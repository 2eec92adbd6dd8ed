"""Recipes kept through training, with and without quantization in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.support.errors import EthorchError
from ethorch.tuning import compress
from ethorch.tuning.compress.weights import find_weights
from tests.tuning.compress.networks import SAMPLES, kinds
from tests.tuning.compress.test_compensation import two_of_four

RECIPES = {"first": "16-values", "depthwise": "8-values", "grouped": "4-bits", "point": "2:4+16-values", "head": "50%-zeros"}
BATCH = torch.cat([x for (x,) in SAMPLES])


def train(model: nn.Module, steps: int = 8) -> list[float]:
    """Towards outputs of its own at the start, turned by one."""
    with torch.no_grad():
        wanted = model(BATCH).roll(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(BATCH) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def check(graph: nn.Module) -> None:
    codes = {weight.name: weight.codes for weight in find_weights(graph)}  # type: ignore[arg-type]
    assert len(codes["first"].unique()) <= 16 and len(codes["depthwise"].unique()) <= 8 and len(codes["grouped"].unique()) <= 15
    assert len(codes["point"].unique()) <= 16 and two_of_four(codes["point"].flatten(1)[None], codes["point"].shape[1])
    assert float((codes["head"] == 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert all(len(each.unique()) > 3 for each in codes.values())


def test_a_float_model_keeps_them_and_its_quantization_does() -> None:
    model = compress.constrain(kinds().train(), RECIPES)
    before = model.first.weight.clone()
    losses = train(model)
    assert losses[-1] < losses[0] and not torch.equal(before, model.first.weight)
    graph = quantize(UserModel(model.eval(), SAMPLES[0], SAMPLES), EthosUCompileSpec("ethos-u55-128"))
    check(graph)


def test_training_with_quantization_keeps_them() -> None:
    model = compress.constrain(kinds().train(), RECIPES)
    prepared = ethorch.tuning.prepare_qat(model, BATCH)
    losses = train(prepared)
    assert losses[-1] < losses[0]
    ethorch.tuning.freeze_qat(prepared)
    train(prepared, 2)
    prepared.eval()
    with torch.no_grad():
        trained = prepared(SAMPLES[0][0])
    graph = ethorch.tuning.convert_qat(prepared, SAMPLES[0])
    check(graph)
    with torch.no_grad():
        assert ethorch.sqnr_db(trained, graph(*SAMPLES[0])) > 25
    program = ethorch.compile(graph, SAMPLES[0], "ethos-u85-256")
    assert program.compare(samples=[x for (x,) in SAMPLES[:3]], model=kinds()).bit_exact


def test_without_parametrizations_the_codes_are_the_same() -> None:
    model, spec = compress.constrain(kinds(), RECIPES), EthosUCompileSpec("ethos-u55-128")
    before = quantize(UserModel(model, SAMPLES[0], SAMPLES), spec)
    for name in RECIPES:
        parametrize.remove_parametrizations(model.get_submodule(name), "weight")
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    after = quantize(UserModel(model, SAMPLES[0], SAMPLES), spec)
    check(after)
    for a, b in zip(find_weights(before), find_weights(after), strict=True):  # type: ignore[arg-type]
        assert torch.equal(a.codes, b.codes)


def test_a_checkpoint_holds_them() -> None:
    model, other = (compress.constrain(kinds(), RECIPES) for _ in range(2))
    train(model.train(), 2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(BATCH), other.eval()(BATCH))


def test_a_common_scale_is_left_to_apply() -> None:
    model = compress.constrain(kinds(), {"head": "one-scale", "point": "one-scale+16-values"})
    assert not parametrize.is_parametrized(model.head) and parametrize.is_parametrized(model.point)
    graph = quantize(UserModel(model, SAMPLES[0], SAMPLES), EthosUCompileSpec("ethos-u55-128"))
    made = compress.apply(graph, {"head": "one-scale", "point": "one-scale+16-values"}, SAMPLES)  # type: ignore[arg-type]
    scales = {weight.name: weight.scale().unique() for weight in find_weights(made)}
    assert len(scales["head"]) == len(scales["point"]) == 1 < len(scales["first"])


def test_zeros_have_no_gradient() -> None:
    model = compress.constrain(kinds(), {"point": "2:4"})
    model(BATCH).sum().backward()
    gradient = model.point.parametrizations.weight.original.grad
    assert (gradient[model.point.weight == 0] == 0).all() and (gradient != 0).any()


def test_a_plan_can_be_trained() -> None:
    planned = compress.plan(kinds(), EthosUCompileSpec("ethos-u85-256"), SAMPLES, min_sqnr_db=15, recipes=["2:4", "16-values"])
    model = compress.constrain(kinds(), planned.recipes)
    parametrized = {name for name, module in model.named_modules() if parametrize.is_parametrized(module)}
    assert parametrized == set(planned.recipes) and parametrized


@pytest.mark.parametrize(
    ("recipes", "words"),
    [
        ({"hed": "2:4"}, "unknown weight 'hed'.*head"),
        ({"norm.running": "2:4"}, "unknown weight"),
        ({"head": "nothing"}, r"compress\.recipe"),
    ],
)
def test_what_cannot_be_trained_is_refused(recipes: dict[str, str], words: str) -> None:
    with pytest.raises(EthorchError, match=words):
        compress.constrain(kinds(), recipes)


def test_weights_of_an_attention_have_numbers() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.attention(x, x, x, need_weights=False)[0])

    model, samples = Attends().eval(), [(torch.randn(1, 6, 32),) for _ in range(6)]
    spec = EthosUCompileSpec("ethos-u55-128")
    graph = quantize(UserModel(model, samples[0], samples), spec)
    recipes = {"attention": "8-values", "attention#2": "16-values", "head": "2:4"}
    shapes = compress.weights(graph)  # type: ignore[arg-type]
    assert shapes == {"attention": (96, 32), "attention#2": (32, 32), "head": (8, 32)}
    compress.constrain(model, recipes)
    assert parametrize.is_parametrized(model.attention, "in_proj_weight") and parametrize.is_parametrized(model.attention.out_proj)
    graph = quantize(UserModel(model, samples[0], samples), spec)
    found = {weight.name: len(weight.codes.unique()) for weight in find_weights(graph)}  # type: ignore[arg-type]
    assert found["attention"] <= 8 < found["attention#2"] <= 16 < found["head"]


@pytest.mark.parametrize("name", ["head#2", "attention#9", "", "norm"])
def test_numbers_beyond_are_refused(name: str) -> None:
    with pytest.raises(EthorchError, match="unknown weight"):
        compress.constrain(kinds(), {name: "8-values"})


@pytest.mark.parametrize("name", ["0", "0#2", "0.weight_hh_l0"])
def test_recurrent_layers_are_refused(name: str) -> None:
    with pytest.raises(EthorchError, match=r"compress\.recurrent_in_training"):
        compress.constrain(nn.Sequential(nn.LSTM(4, 4)), {name: "8-values"})

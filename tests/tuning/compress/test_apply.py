"""Recipes in one shot: the codes in the payload obey, Vela's encoder agrees, and the bits are those of the reference model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.npu import Program
from ethorch.quantization.calibrate import quantize
from ethorch.support.errors import EthorchError, QuantizationError
from ethorch.tuning import compress
from ethorch.tuning.compress.weights import find_weights
from ethorch.vela.lowered import Lowered
from tests.tuning.compress.networks import SAMPLES, kinds
from tests.tuning.compress.test_compensation import two_of_four

NAMES = ["first", "depthwise", "grouped", "point", "head"]


@pytest.fixture(scope="module")
def quantized() -> GraphModule:
    spec = EthosUCompileSpec("ethos-u55-128")
    found = quantize(UserModel(kinds(), SAMPLES[0], SAMPLES), spec)
    assert isinstance(found, GraphModule)
    return found


def codes(graph: GraphModule) -> Mapping[str, torch.Tensor]:
    return {weight.name: weight.codes for weight in find_weights(graph)}


def sparse(delegate: Lowered) -> int:
    """Convolutions whose weights the NPU reads as 2:4."""
    program = Program(delegate.compiled.command_stream, delegate.compiled.constants)
    return sum(op.state.get("WEIGHT_FORMAT.sparsity", 0) for op in program.operations() if op.name == "NPU_OP_CONV")


def encoded(graph: GraphModule, target: str) -> int:
    (delegate,) = build_pte(graph, SAMPLES[0], EthosUCompileSpec(target)).delegates
    return delegate.performance.encoded_weight_bytes


def test_weights_have_the_names_of_their_modules(quantized: GraphModule) -> None:
    assert list(compress.weights(quantized)) == NAMES
    assert compress.weights(quantized)["grouped"] == (32, 16, 3, 3)


@pytest.mark.parametrize(("text", "most"), [("16-values", 16), ("8-values", 8), ("3-bits", 7), ("75%-zeros+8-values", 8)])
def test_vela_encodes_what_obeys_in_fewer_bytes(quantized: GraphModule, text: str, most: int) -> None:
    made = compress.apply(quantized, dict.fromkeys(NAMES, text), SAMPLES)
    assert all(len(each.unique()) <= most for each in codes(made).values())
    assert encoded(made, "ethos-u55-128") < (0.75 if most > 8 else 0.65) * encoded(quantized, "ethos-u55-128")
    assert all(len(each.unique()) > 32 for each in codes(quantized).values()), "the model that was given is as it was"


@pytest.mark.parametrize("target", [pytest.param("ethos-u55-128", marks=pytest.mark.long), "ethos-u85-256"])
def test_the_program_computes_as_the_reference_model(quantized: GraphModule, target: str) -> None:
    recipes = {
        "first": "2:4+16-values",
        "depthwise": "8-values",
        "grouped": "50%-zeros",
        "point": "2:4",
        "head": "one-scale+16-values",
    }
    made = compress.apply(quantized, recipes, SAMPLES)
    program = ethorch.compile(made, SAMPLES[0], target)
    assert program.compare(samples=[x for (x,) in SAMPLES[:3]], model=kinds()).bit_exact
    with torch.no_grad():
        wanted = [made(*sample) for sample in SAMPLES]
        assert ethorch.sqnr_db(wanted, [program(*sample) for sample in SAMPLES]) > 35


def test_two_of_four_runs_on_u85_in_fewer_cycles(quantized: GraphModule) -> None:
    made = compress.apply(quantized, {"point": "2:4", "first": "2:4"}, SAMPLES)
    for name in ("point", "first"):
        assert two_of_four(codes(made)[name].flatten(1)[None], codes(made)[name].shape[1])
    spec = EthosUCompileSpec("ethos-u85-256")
    (after,), (before,) = (build_pte(graph, SAMPLES[0], spec).delegates for graph in (made, quantized))
    assert sparse(after) == 2 and sparse(before) == 0
    assert after.performance.total_cycles < before.performance.total_cycles


def test_a_recipe_for_all_leaves_out_what_it_does_not_concern(quantized: GraphModule) -> None:
    assert compress.everywhere(quantized, "16-values") == dict.fromkeys(NAMES, "16-values")
    assert list(compress.everywhere(quantized, "2:4")) == ["first", "grouped", "point", "head"]


def test_compensation_and_bias_keep_the_outputs(quantized: GraphModule) -> None:
    recipes = dict.fromkeys(NAMES, "8-values")
    with torch.no_grad():
        wanted = [quantized(*sample) for sample in SAMPLES]
        made = compress.apply(quantized, recipes, SAMPLES)
        found = ethorch.sqnr_db(wanted, [made(*sample) for sample in SAMPLES])
        for weight in find_weights(made):  # the same levels, each weight by itself
            other = find_weights(quantized)[NAMES.index(weight.name)]
            levels = weight.codes.unique().long()
            nearest = levels[(other.rows()[..., None] - levels).abs().argmin(-1)]
            weight.write(nearest, other.scale())
        assert found > ethorch.sqnr_db(wanted, [made(*sample) for sample in SAMPLES]) + 1


def test_a_weight_that_several_layers_read_stays_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(x)))

    samples = [(torch.randn(1, 16),) for _ in range(8)]
    graph = quantize(UserModel(Twice().eval(), samples[0], samples), EthosUCompileSpec("ethos-u55-128"))
    assert isinstance(graph, GraphModule)
    made = compress.apply(graph, {"layer": "4-values"}, samples)
    (weight,) = find_weights(made)
    assert len(weight.uses) == 2 and len(weight.codes.unique()) <= 4


@pytest.mark.parametrize(
    ("recipes", "words"),
    [
        ({"frist": "2:4"}, r"unknown weight 'frist'.*first"),
        ({"first": "5"}, r"compress\.recipe"),
        ({"depthwise": "2:4"}, r"compress\.does_not_concern"),
    ],
)
def test_what_cannot_be_applied_is_refused(quantized: GraphModule, recipes: dict[str, str], words: str) -> None:
    with pytest.raises(EthorchError, match=words):
        compress.apply(quantized, recipes, SAMPLES)


def test_samples_are_needed(quantized: GraphModule) -> None:
    with pytest.raises(QuantizationError, match=r"quantize\.no_samples"):
        compress.apply(quantized, {}, [])


def test_a_model_without_weights_is_refused() -> None:
    graph = quantize(UserModel(nn.ReLU(), SAMPLES[0], SAMPLES), EthosUCompileSpec("ethos-u55-128"))
    assert isinstance(graph, GraphModule)
    with pytest.raises(QuantizationError, match=r"compress\.no_weights"):
        compress.weights(graph)

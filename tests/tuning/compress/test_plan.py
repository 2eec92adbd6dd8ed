"""The plan: limits hold or are said not to, weight by weight, before anything is trained."""

from __future__ import annotations

import json
import math
from typing import Literal

import pytest
import torch
from torch.fx import GraphModule

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.support.errors import EthorchError
from ethorch.tuning import compress
from ethorch.tuning.compress.choice import Option, Price, front
from ethorch.tuning.compress.costs import costs
from ethorch.tuning.compress.moments import remove_rounding
from ethorch.tuning.compress.recipe import AS_IS, parse
from ethorch.tuning.compress.weights import find_weights
from tests.tuning.compress.networks import SAMPLES, kinds

U55, U85 = EthosUCompileSpec("ethos-u55-128"), EthosUCompileSpec("ethos-u85-256")


@pytest.fixture(scope="module")
def planned() -> compress.Plan:
    return compress.plan(kinds(), U55, SAMPLES, min_sqnr_db=18, objective="bytes", recipes=["16-values", "8-values", "4-bits"])


def test_as_much_is_saved_as_the_accuracy_allows(planned: compress.Plan) -> None:
    assert planned.reached and planned.recipes and planned.sqnr_db >= 18
    assert planned.flash_bytes < planned.flash_bytes_before and planned.sqnr_db < planned.sqnr_db_before
    assert sum(layer.bytes for layer in planned.layers) < 0.75 * sum(layer.bytes_before for layer in planned.layers)


def test_what_is_planned_is_what_comes(planned: compress.Plan) -> None:
    made = compress.apply(planned.quantized, planned.recipes, SAMPLES)
    built = build_pte(made, SAMPLES[0], U55)
    assert len(built.pte) == pytest.approx(planned.flash_bytes, rel=0.02)
    model = kinds()
    with torch.no_grad():
        found = ethorch.sqnr_db([model(*x) for x in SAMPLES], [made(*x) for x in SAMPLES])
    assert found > planned.sqnr_db - 0.5


def test_predictions_are_near_what_is_measured(planned: compress.Plan) -> None:
    """Of one weight compressed alone, against the model quantized; activations in float, whose rounding would hide small errors."""
    smooth = remove_rounding(planned.quantized)
    for layer in planned.layers:
        one = next(each for each in layer.tried if each.recipe == "8-values")
        made = remove_rounding(compress.apply(planned.quantized, {layer.weight: one.recipe}, SAMPLES, bias=False))
        with torch.no_grad():
            found = ethorch.sqnr_db([smooth(*x) for x in SAMPLES], [made(*x) for x in SAMPLES])
        assert one.sqnr_db == pytest.approx(found, abs=4)


def test_less_flash_and_fewer_cycles(planned: compress.Plan) -> None:
    limit = planned.flash_bytes_before - 3000
    smaller = compress.plan(planned.quantized, U55, SAMPLES, max_flash=limit, recipes=["16-values", "8-values"])
    assert smaller.reached and planned.flash_bytes < smaller.flash_bytes <= limit and smaller.sqnr_db_before == math.inf
    faster = compress.plan(kinds(), U85, SAMPLES, max_cycles=int(planned_cycles() * 0.9), recipes=["2:4", "2:4+16-values"])
    assert faster.reached and any(recipe.startswith("2:4") for recipe in faster.recipes.values())
    assert faster.cycles <= 0.9 * faster.cycles_before


def planned_cycles() -> int:
    graph = quantize(UserModel(kinds(), SAMPLES[0], SAMPLES), U85)
    return sum(delegate.performance.total_cycles for delegate in build_pte(graph, SAMPLES[0], U85).delegates)


def test_a_limit_out_of_reach_is_said(caplog: pytest.LogCaptureFixture) -> None:
    found = compress.plan(kinds(), U55, SAMPLES, max_flash=1000, min_sqnr_db=40, recipes=["8-values"])
    assert not found.reached and set(found.recipes.values()) == {"8-values"}
    assert "at most 1,000" in caplog.text and "at least 40.0" in caplog.text and "compress.not_reached" in caplog.text
    assert "NOT" in found.table()


def test_the_fast_decoder_of_u85_is_left_out_where_that_pays() -> None:
    torch.manual_seed(5)
    model, samples = torch.nn.Conv2d(64, 256, 3, padding=1).eval(), [(torch.rand(1, 64, 16, 16),) for _ in range(4)]
    found = compress.plan(model, U85, samples, min_sqnr_db=5, recipes=["2:4", "2:4+15-values"])
    assert U85.memory_mode == "Sram_Only" and found.vela_flags == ("--disable-fwd",) and "--disable-fwd" in found.summary()
    made = compress.apply(found.quantized, found.recipes, samples)
    spec = EthosUCompileSpec("ethos-u85-256", extra_flags=list(found.vela_flags))
    assert build_pte(made, samples[0], spec).delegates[0].performance.total_cycles == pytest.approx(found.cycles, rel=0.02)
    assert found.cycles < 0.6 * found.cycles_before


def test_what_is_left_out_stays() -> None:
    found = compress.plan(kinds(), U55, SAMPLES, max_flash=1000, recipes=["8-values"], leave_out=["head", "first"])
    assert set(found.recipes) == {"depthwise", "grouped", "point"}


def test_table_and_json(planned: compress.Plan) -> None:
    data = json.loads(json.dumps(planned.to_json()))
    assert data["target"] == "ethos-u55-128" and data["reached"] is True
    assert {layer["weight"]: layer["recipe"] for layer in data["layers"] if layer["recipe"] != "as-is"} == planned.recipes
    assert data["layers"][0]["tried"][0] == {
        "recipe": "as-is",
        "cycles": planned.layers[0].cycles_before,
        "bytes": planned.layers[0].bytes_before,
        "sqnr_db": None,
    }
    assert all(f"| {layer.weight} |" in planned.table() for layer in planned.layers)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, r"compress\.no_limit"),
        ({"min_sqnr_db": 20, "objective": "size"}, "objective"),
        ({"min_sqnr_db": 20, "recipes": ["9"]}, r"compress\.recipe"),
        ({"min_sqnr_db": 20, "leave_out": ["haed"]}, "haed.*head"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(EthorchError, match=words):
        compress.plan(kinds(), U55, SAMPLES, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [U55, U85])
def test_costs_are_shared_out_among_weights(spec: EthosUCompileSpec) -> None:
    graph = quantize(UserModel(kinds(), SAMPLES[0], SAMPLES), spec)
    assert isinstance(graph, GraphModule)
    found = costs(graph, find_weights(graph), SAMPLES[0], spec)
    (delegate,) = build_pte(graph, SAMPLES[0], spec).delegates
    rows = delegate.compiled.rows()
    convolutions = sum(row.op_cycles for row in rows if "Conv" in row.operator and not row.name.startswith("mean"))
    assert sum(cost.cycles for cost in found.weights) == convolutions
    assert delegate.performance.encoded_weight_bytes <= found.weight_bytes <= len(delegate.compiled.constants)


@pytest.mark.parametrize(("wanted", "recipe"), [("cycles", "32-values"), ("bytes", "75%-zeros"), (None, "75%-zeros")])
def test_what_is_wanted_is_not_sold_for_the_other(wanted: Literal["cycles", "bytes"] | None, recipe: str) -> None:
    """Zeros that save a hundred bytes and take a cycle more are none of the options where cycles are to be saved."""
    options = [Option(AS_IS, 100, 200, 0), Option(parse("32-values"), 100, 150, 1), Option(parse("75%-zeros"), 101, 50, 1)]
    (chosen,) = front([options], Price(1, 0.02, wanted))[-1].values()
    assert str(chosen) == recipe


def test_the_front_takes_the_most_saved_for_the_noise() -> None:
    def option(text: str, cost: int, noise: float) -> Option:
        return Option(AS_IS if text == "as-is" else parse(text), cost, 0, noise)

    options = [
        [option("as-is", 100, 0), option("32-values", 60, 1), option("16-values", 58, 5), option("8-values", 20, 6)],
        [option("as-is", 100, 0), option("8-values", 99, 0.001), option("2:4", 200, 0.5)],
    ]
    found = front(options, Price(1, 0))
    assert [{number: str(recipe) for number, recipe in each.items()} for each in found] == [
        {},
        {1: "8-values"},
        {0: "32-values", 1: "8-values"},
        {0: "8-values", 1: "8-values"},
    ]


def test_rows_that_indices_choose_are_no_weights_that_are_copied() -> None:
    """On U85 an embedding is copies of rows that the indices choose."""
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 16), torch.nn.Linear(16, 16)).eval()
    samples = [(torch.randint(0, 9, (1, 8)),) for _ in range(2)]
    found = compress.plan(model, U85, samples, min_sqnr_db=10, recipes=["8-values"])
    assert [layer.weight for layer in found.layers] == ["1"] and found.reached and found.layers[0].bytes_before > 256

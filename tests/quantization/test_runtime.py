"""Quantized in part, in several schemes, with views written in place: the ExecuTorch runtime gives what fake-quant gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional

from ethorch import EthosUCompileSpec, EthosUQuantizer, runtime, sqnr_db
from ethorch.arm.quantizer import (
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
)
from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from tests.helpers.quantized import IMAGE, Small, quantized, quantizer, samples

SPEC = EthosUCompileSpec("ethos-u55-128")
INT8 = get_symmetric_quantization_config()


def agree(graph: GraphModule, calibration: Sequence[tuple[Any, ...]], delegates: int | None, decibels: float = 30) -> Build:
    """Build, run, compare with the fake-quantized model."""
    built = build_pte(graph, calibration[0], SPEC)
    assert delegates in (None, len(built.delegates)), built.partition.refusals
    program = runtime.load(built.pte)
    for inputs in calibration[:2]:
        with torch.no_grad():
            wanted = [x for x in torch.utils._pytree.tree_leaves(graph(*inputs)) if isinstance(x, Tensor)]
        found = [x for x in program(*inputs) if isinstance(x, Tensor)]
        assert [x.shape for x in found] == [x.shape for x in wanted]
        assert sqnr_db(wanted, found) > decibels
    return built


SETTINGS = {
    "first in float": lambda q: q.set_global(INT8).set_module_name("stem", None),
    "middle in float": lambda q: q.set_global(INT8).set_module_name("blocks.0", None),
    "last in float": lambda q: q.set_global(INT8).set_module_type(nn.Linear, None),
    "one layer only": lambda q: q.set_module_name("blocks.1", INT8),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * name.startswith(("first", "last"))) for name in SETTINGS]
)
def test_float_parts_stay_on_the_cpu(name: str) -> None:
    q: EthosUQuantizer = SETTINGS[name](EthosUQuantizer(SPEC))
    calibration = samples(IMAGE)
    graph = quantized(Small(), calibration, q).module
    built = agree(graph, calibration, 2 if name == "middle in float" else 1)
    assert built.partition.refusals


def test_several_inputs_and_a_dict_of_outputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor, y: Tensor, unused: Tensor) -> dict[str, Any]:
            a = self.one(x).relu()
            return {"b": self.two(a + y), "a": (a,)}

    calibration = samples((2, 8), (2, 8), (3,))
    agree(quantized(Model(), calibration).module, calibration, 1)


def test_views_written_in_place() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            y[:, :4] += 1
            y[:, 2:5].clamp_(max=0.7)
            return y.relu_() * 2

    calibration = samples(IMAGE)
    graph = quantized(Model(), calibration).module
    agree(graph, calibration, 1)
    assert sqnr_db(Model()(*calibration[0]), graph(*calibration[0])) > 30


def test_uint8_at_the_programs_ends() -> None:
    q = EthosUQuantizer(SPEC).set_global(INT8).set_io(get_uint8_io_quantization_config())
    calibration = samples(IMAGE)
    agree(quantized(Small(), calibration, q).module, calibration, 1)


def test_int16_at_the_programs_ends() -> None:
    q = EthosUQuantizer(SPEC).set_global(INT8).set_io(get_symmetric_a16w8_quantization_config())
    calibration = samples(IMAGE)
    agree(quantized(Small(), calibration, q).module, calibration, None)


def test_four_bit_weights() -> None:
    q = quantizer(get_symmetric_a8w4_quantization_config(is_qat=False))
    calibration = samples(IMAGE)
    agree(quantized(Small(), calibration, q).module, calibration, 1)


def test_sixteen_bit_activations() -> None:
    calibration = samples(IMAGE)
    agree(quantized(Small(), calibration, quantizer(get_symmetric_a16w8_quantization_config())).module, calibration, 1, 50)


def test_two_schemes_in_one_model() -> None:
    q = quantizer().set_module_name("head", get_symmetric_a16w8_quantization_config())
    calibration = samples(IMAGE)
    built = agree(quantized(Small(), calibration, q).module, calibration, None)
    assert not built.partition.refusals


@pytest.mark.parametrize("left_out", ["1", *(pytest.param(x, marks=pytest.mark.long) for x in ("2", "3"))])
def test_a_module_without_parameters_stays_on_the_cpu_when_it_is_left_out(left_out: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 4 * 4, 4)).eval()
    calibration = samples(IMAGE)
    graph = quantized(model, calibration, quantizer().set_module_name(left_out, None)).module
    built = agree(graph, calibration, 2, decibels=25)
    assert [(refusal.origin.module, refusal.reason.id) for refusal in built.partition.refusals] == [(left_out, "quantize.left_out")]


#: What code that belongs to no module makes of two maps of four channels. Each result has eight.
BETWEEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat, permute": lambda x, y: torch.cat([x, y], 1).permute(0, 1, 3, 2),
    "relu": lambda x, y: torch.cat([x.relu(), y], 1),
    "add, max_pool2d": lambda x, y: functional.max_pool2d(torch.cat([x + y, x], 1), 2),
    "softmax": lambda x, y: torch.cat([x.softmax(1), 2.5 * y], 1),
    "matmul": lambda x, y: torch.cat([x @ y.transpose(2, 3), y], 1),
    "split, where": lambda x, y: torch.cat([torch.where(x > y, x, y), *y.split(2, 1)], 1),
}


class Between(nn.Module):
    """Two modules, whose results ``join`` makes the input of a third."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.join = join
        self.first, self.second, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.join(self.first(x), self.second(x))).relu()


def in_16_bits(join: Callable[[Tensor, Tensor], Tensor], modules: Sequence[str]) -> GraphModule:
    q = quantizer()
    for name in modules:
        q.set_module_name(name, get_symmetric_a16w8_quantization_config())
    return quantized(Between(join), samples(IMAGE), q).module


def activation_bits(graph: GraphModule) -> list[int]:
    """Of each activation that is quantized, in the graph's order."""
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    return [torch.iinfo(node.args[-1]).bits for node in graph.graph.nodes if node.target is quantize]


@pytest.mark.parametrize(
    "join", [pytest.param(x, marks=[pytest.mark.long] * (x in ("relu", "softmax", "matmul"))) for x in BETWEEN]
)
def test_what_belongs_to_no_module_takes_the_scheme_of_all_around_it(join: str) -> None:
    graph = in_16_bits(BETWEEN[join], ("first", "second", "last"))
    assert set(activation_bits(graph)) == {16}
    agree(graph, samples(IMAGE), None)


@pytest.mark.parametrize("modules", [("first", "second"), ("first", "last")])
def test_what_stands_between_two_schemes_has_the_global_one(modules: Sequence[str]) -> None:
    graph = in_16_bits(BETWEEN["cat, permute"], modules)
    (cat,) = [node for node in graph.graph.nodes if node.target is torch.ops.aten.cat.default]
    (after,) = cat.users
    assert torch.iinfo(after.args[-1]).bits == 8 and 16 in activation_bits(graph)
    agree(graph, samples(IMAGE), None)


class Sampled(nn.Module):
    """Reads a map at places that it computes, some of them beyond it."""

    def forward(self, x: Tensor) -> Tensor:
        grid = torch.tanh(x[:, :2]).permute(0, 2, 3, 1) * 1.4
        return functional.grid_sample(torch.sin(x) + 1.5, grid, align_corners=False) * 2.0


def test_what_the_cpu_computes_of_codes_only_picks_them() -> None:
    calibration = samples((1, 3, 6, 5))
    agree(quantized(Sampled(), calibration).module, calibration, 2)

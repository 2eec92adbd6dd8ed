"""Concatenations: who shares their qparams, and who keeps its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ethorch
from ethorch import EthosUCompileSpec, EthosUQuantizer
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.lower.fx.node import QUANTIZE, op_name
from ethorch.support.metrics import sqnr_db
from tests.helpers.quantized import Function


class Fire(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [torch.relu(self.a(x)), torch.max_pool2d(torch.relu(8 * self.b(x)), 1)]
        return self.c(nn.functional.dropout(torch.cat(parts, 1), training=False))


class ReadTwice(Fire):
    def forward(self, x: Tensor) -> Tensor:
        small = torch.relu(self.a(x))
        return self.c(torch.cat([small, torch.relu(8 * self.b(x))], 1)) + small[:, :2]


class Pyramid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 3
        once = torch.max_pool2d(x, 3, 1, 1)
        return torch.cat([x, once, torch.max_pool2d(once, 3, 1, 1)], 1)


class Nested(Fire):
    def forward(self, x: Tensor) -> Tensor:
        inner = torch.cat([self.a(x), self.b(x)], 1)
        return torch.cat([torch.sin(x), inner], 1)


def scales(kind: type[nn.Module]) -> list[float]:
    """The distinct scales of the quantize nodes behind the input's, in the order of the graph."""
    torch.manual_seed(0)  # before the weights: with some of them two ranges are equal
    model = kind()
    inputs = (torch.randn(2, 3, 6, 6),)
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model.eval(), inputs).module(), quantizer)
    for _ in range(4):
        prepared(torch.randn(2, 3, 6, 6))
    nodes = [node for node in convert_pt2e(prepared).graph.nodes if op_name(node.target) in QUANTIZE]
    return list(dict.fromkeys(node.args[1] for node in nodes[1:]))


def test_what_only_the_concatenation_reads_has_its_scale() -> None:
    assert len(scales(Fire)) == 3  # before the mul, of all that meets in the cat, of the output


def test_what_others_read_keeps_its_scale() -> None:
    assert len(scales(ReadTwice)) == 5  # one more, of the relu that the add reads, and of the last convolution


def test_one_tensor_and_its_pools_need_no_second_scale() -> None:
    assert len(scales(Pyramid)) == 1


def test_concatenations_in_concatenations_are_one_group() -> None:
    assert len(scales(Nested)) == 1


class Inputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y.flip(-1), torch.ones(1, 2, 9)], 1)


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.relu(nn.functional.avg_pool2d(x, 3, 1, 1)).transpose(2, 3), torch.sin(x).clamp(0)], 1)


def converted(model: nn.Module, batches: list[tuple[Tensor, ...]]) -> torch.fx.GraphModule:
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model.eval(), batches[0]).module(), quantizer)
    for batch in batches:
        prepared(*batch)
    return convert_pt2e(prepared)


def test_inputs_and_constants_that_only_the_concatenation_reads_have_its_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [tuple(factor * torch.randn(1, 40, 9, generator=generator) for factor in (1, 3)) for _ in range(4)]
    model = converted(Inputs(), batches)
    steps = {node.args[1] for node in model.graph.nodes if op_name(node.target) in QUANTIZE}
    assert len(steps) == 1
    result = torch.cat([model(*batch).flatten() for batch in batches])
    wanted = torch.cat([Inputs()(*batch).flatten() for batch in batches])
    error = float((result - wanted).abs().max())
    assert error < 0.75 * steps.pop()  # rounded once; the largest values may be clipped a little


def test_a_single_sample_of_inputs_that_share_a_scale_is_a_warning_for_each(caplog: pytest.LogCaptureFixture) -> None:
    converted(Inputs(), [(torch.ones(1, 2, 9), torch.ones(1, 2, 9))])
    assert all(f"single sample of input {name}" in caplog.text for name in "xy")


def test_parts_of_other_extremes_do_not_widen_the_range_of_the_whole() -> None:
    ramp = torch.linspace(-1, 1, 90).reshape(1, 10, 9)
    model = converted(Inputs(), [(ramp / 9, 3 * ramp)] * 4)
    (step,) = {node.args[1] for node in model.graph.nodes if op_name(node.target) in QUANTIZE}
    assert step == pytest.approx(6 / 255, rel=0.01)


def test_a_relu_before_a_concatenation_keeps_negative_values_of_what_it_reads() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(1, 3, 12, 12, generator=generator),) for _ in range(4)]
    model = converted(Pooled(), batches)
    assert sqnr_db(Pooled()(*batches[0]), model(*batches[0])) > 30


AVERAGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pools": lambda x, y: torch.cat([F.avg_pool2d(x + y, 2), F.avg_pool2d(x - y, 2)], 1),
    "a pool of inputs": lambda x, y: torch.cat([F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)], 1),
    "a pool of maxima": lambda x, y: torch.cat([F.avg_pool2d(F.max_pool2d(x + y, 2), 2), F.avg_pool2d(x - y, 4)], 1),
    "interpolation": lambda x, y: torch.cat([F.interpolate(z, size=(3, 5), mode="bilinear") for z in (x + y, x - y)], 1),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_what_is_averaged_before_a_concatenation_is_not_clipped(name: str) -> None:
    """Averages have a smaller range than the elements that they average."""
    torch.manual_seed(0)
    model, samples = Function(AVERAGES[name]), [(torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8)) for _ in range(4)]
    program = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples)
    assert min(sqnr_db(model(*sample), program(*sample)) for sample in samples) > 28

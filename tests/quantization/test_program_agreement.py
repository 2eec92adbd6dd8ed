"""The fake-quantized module and the program agree: biases are rounded in both, and predicates are decided by fine steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

import ethorch
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name
from tests.helpers.quantized import prepared, quantizer, samples


class Small(nn.Module):
    """An inverted residual block after a convolution that two inputs share, so that its bias has two units."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3)
        self.block = nn.Sequential(
            nn.Conv2d(8, 32, 1), nn.ReLU6(), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.ReLU6(), nn.Conv2d(32, 8, 1)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = torch.relu(self.stem(x) + self.stem(y * 3))
        return z + self.block(z)


def test_a_fake_quantized_network_gives_the_codes_of_its_program() -> None:
    model, data = Small().eval(), samples((1, 3, 16, 16), (1, 3, 16, 16), count=12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph = prepared(model, data[:4], quantizer())
    converted = convert_pt2e(graph)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "the user's biases stay"
    program = ethorch.compile(converted, data[0], "ethos-u55-128")
    (last,) = converted.graph.output_node().all_input_nodes
    assert op_name(last.target) in DEQUANTIZE
    different = 0
    with torch.no_grad():
        for inputs in data:
            different += int(((program(*inputs) - converted(*inputs)).abs() > last.args[1] / 2).sum())
    assert different <= 6, f"{different} of {len(data) * 8 * 14 * 14} codes differ"  # ties, rounded up and to even


def test_a_bias_is_rounded_to_units_of_the_accumulator() -> None:
    data = samples((1, 3, 8, 8), count=2)
    converted = convert_pt2e(prepared(nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), data, quantizer()))
    (conv,) = [node for node in converted.graph.nodes if node.target is torch.ops.aten.conv2d.default]
    x, weight, bias = conv.args
    unit = x.args[1] * getattr(converted, weight.args[1].target).double()
    codes = getattr(converted, bias.target).double() / unit
    assert float((codes - codes.round()).abs().max()) < 1e-3 and float(codes.abs().max()) > 10


class Predicate(nn.Module):
    """A choice by the sign of a sum."""

    def __init__(self, limit: float):
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.sum(1, keepdim=True) > self.limit, x, -x)


@pytest.mark.parametrize("limit", [0.0, 2.5, -1.0])
def test_what_is_only_compared_with_a_number_has_fine_steps_around_it(limit: float) -> None:
    data = samples((64, 16), count=8)
    converted = convert_pt2e(prepared(Predicate(limit).eval(), data, quantizer()))
    steps = {op_name(node.args[0].target): node.args[1:5] for node in converted.graph.nodes if op_name(node.target) in QUANTIZE}
    (scale, zero, low, high) = next(found for name, found in steps.items() if "sum" in name)
    assert (low - zero) * scale < limit < (high - zero) * scale
    spread = max(float(x.sum(1).max() - x.sum(1).min()) for (x,) in data)
    assert scale <= (abs(limit) + spread / 4) / 127
    sides = [((converted(x) - x).abs().amax(1) < 0.05) == (x.sum(1) > limit) for (x,) in data]
    assert float(torch.cat(sides).float().mean()) > 0.97


def test_the_new_state_of_a_gru_has_a_step_of_its_own() -> None:
    """One range for all gates cost a GRU classifier 2 dB on U85."""
    torch.manual_seed(0)
    gru = nn.GRU(8, 8, batch_first=True).eval()
    with torch.no_grad():
        gru.weight_ih_l0[16:] *= 32  # of the new state, whose gate is saturated by most inputs
    data = samples((4, 6, 8), count=8)
    converted = convert_pt2e(prepared(gru, data[:4], quantizer()))
    linears = [n for n in converted.graph.nodes if op_name(n.target) == "aten.linear.default" and n.meta["val"].dim() == 3]
    assert [n.meta["val"].shape[-1] for n in linears] == [16, 8]
    steps = [user.args[1] for node in linears for user in node.users if op_name(user.target) in QUANTIZE]
    assert len(steps) == 2 and steps[1] > 16 * steps[0]
    found = ethorch.sqnr_db([gru(*x)[0] for x in data[4:]], [converted(*x)[0] for x in data[4:]])
    assert found > 25, found

"""Masks that a program makes at run time, or gets as an input, cost no accuracy, however they are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

from ethorch import EthosUCompileSpec, EthosUQuantizer, runtime, sqnr_db
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.backend.build import build_pte
from tests.helpers.quantized import Function

N = 12
INF, LEAST = float("-inf"), torch.finfo(torch.float32).min
FUTURE = torch.ones(N, N, dtype=torch.bool).triu(1)
#: keep[1, N], 1 where a position counts -> what is added to the scores [1, 4, N, N]
WAYS: dict[str, Any] = {
    "fill zeros": lambda keep: torch.zeros(1, N).masked_fill(keep == 0, INF),
    "fill zeros, then move": lambda keep: torch.zeros(1, N).masked_fill(keep == 0, INF)[:, None, None, :].expand(1, 4, N, N),
    "where": lambda keep: torch.where(keep > 0, 0.0, LEAST)[:, None, None, :],
    "where of tensors": lambda keep: torch.where(keep > 0, torch.zeros(1, N), torch.full((1, N), LEAST))[:, None, None, :],
    "factor": lambda keep: (1.0 - keep[:, None, None, :]) * -1e9,
    "factor least float": lambda keep: (1.0 - keep[:, None, None, :]) * LEAST,
    "cast truth": lambda keep: (keep == 0).float()[:, None, None, :] * -1e4,
    "two factors": lambda keep: (1.0 - (keep > 0).float()[:, None, :, None] * (keep > 0).float()[:, None, None, :]) * -1e9,
    "causal and where": lambda keep: torch.full((N, N), INF).triu(1) + torch.where(keep > 0, 0.0, -1e9)[:, None, None, :],
    "causal, then fill": lambda keep: torch.full((1, 1, N, N), LEAST).triu(1).masked_fill((keep == 0)[:, None, None, :], LEAST),
    "all, then fill": lambda keep: torch.full((1, 1, N, N), LEAST).masked_fill((keep > 0)[:, None, None, :] & ~FUTURE, 0.0),
    "least of two": lambda keep: torch.minimum(
        (1 - keep.view(1, N, 1).expand(1, N, 3).amin(-1))[:, None, None, :] * LEAST, torch.full((N, N), LEAST).triu(1)
    ),
    "fill the inverse": lambda keep: (1.0 - keep).masked_fill((1.0 - keep).to(torch.bool), LEAST)[:, None, None, :],
    "where with a bias": lambda keep: torch.where(
        (keep > 0)[:, None, None, :], torch.linspace(-1, 1, 4).view(1, 4, 1, 1), torch.tensor(-1e9)
    ),
}


class Attention(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.qkv, self.out, self.way = nn.Linear(32, 96), nn.Linear(32, 32), way

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part.view(1, N, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.way == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-1, -2) * 8**-0.5
            scores = scores - (1 - mask[:, None, None, :]) * 1e9 if self.way == "subtract" else scores + mask
            y = torch.softmax(scores, -1) @ v
        return x + self.out(y.transpose(1, 2).reshape(1, N, 32))


class Layers(nn.Module):
    """Two layers that share one mask, as those of Hugging Face's encoders do."""

    def __init__(self, mask: Any, way: str = "", layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.mask, self.layers = mask, nn.ModuleList(Attention(way) for _ in range(layers))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        mask = self.mask(keep)
        for layer in self.layers:
            x = layer(x, mask)
        return x


def samples(kind: Any = float) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(1, N, 32), (torch.arange(N)[None] < 3 + k).to(kind)) for k in range(8)]


def converted(model: nn.Module, inputs: list[Any], target: str, config: Any) -> nn.Module:
    quantizer = EthosUQuantizer(EthosUCompileSpec(target)).set_global(config)
    prepared = prepare_pt2e(torch.export.export(model.eval(), inputs[0]).module(), quantizer)
    for sample in inputs:
        prepared(*sample)
    return convert_pt2e(prepared)


#: Other orders and constants of what the default run has.
SIMILAR = ("fill zeros, then move", "where of tensors", "factor least float", "cast truth", "causal, then fill", "all, then fill")


@pytest.mark.parametrize(
    ("mask", "way"),
    [
        *(pytest.param(mask, "", marks=[pytest.mark.long] * (mask in SIMILAR)) for mask in WAYS),
        *(("where", "sdpa"), ("causal and where", "sdpa")),
    ],
)
def test_a_mask_made_at_run_time(mask: str, way: str) -> None:
    model, inputs = Layers(WAYS[mask], way, 1 + (way == "sdpa")), samples(torch.float32)
    quantized = converted(model, inputs, "ethos-u55-128", get_symmetric_quantization_config())
    assert sqnr_db(model(*inputs[0]), quantized(*inputs[0])) > 30


@pytest.mark.parametrize("mask", ["factor", *(pytest.param(x, marks=pytest.mark.long) for x in ("where", "fill zeros"))])
def test_integers_say_what_counts(mask: str) -> None:
    model, inputs = Layers(WAYS[mask]), samples(torch.int64)
    quantized = converted(model, inputs, "ethos-u85-256", get_symmetric_a16w8_quantization_config())
    wanted = model(*inputs[0])
    assert sqnr_db(wanted, quantized(*inputs[0])) > 45
    built = build_pte(quantized, inputs[0], EthosUCompileSpec("ethos-u85-256"))
    assert len(built.delegates) == 1
    assert sqnr_db(wanted, runtime.load(built.pte)(*inputs[0])[0]) > 45


CAUSAL = torch.zeros(N, N).masked_fill(FUTURE, -1e9)
PICKS: dict[str, Any] = {
    "index": lambda place: CAUSAL[place],
    "index_select": lambda place: CAUSAL.index_select(0, place),
    "embedding": lambda place: F.embedding(place, CAUSAL),
    "gather": lambda place: CAUSAL.gather(0, place[:, None].expand(N, N)),
    "index of a biased one": lambda place: (CAUSAL + torch.linspace(-1, 1, N))[place],
}


@pytest.mark.parametrize("pick", PICKS)
def test_rows_of_a_mask_at_positions(pick: str) -> None:
    model = Layers(PICKS[pick])
    inputs = [(x, torch.randperm(N)) for x, _ in samples()]
    quantized = converted(model, inputs, "ethos-u85-256", get_symmetric_a16w8_quantization_config())
    wanted = model(*inputs[0])
    assert sqnr_db(wanted, quantized(*inputs[0])) > 45
    if pick == "index":
        built = build_pte(quantized, inputs[0], EthosUCompileSpec("ethos-u85-256"))
        assert len(built.delegates) == 1
        assert sqnr_db(wanted, runtime.load(built.pte)(*inputs[0])[0]) > 45


JOINS: dict[str, Any] = {
    "join a mask": lambda a: torch.cat([a, torch.full((1, 4, N, 3), -1e9)], -1),
    "fill, then bound from above": lambda a: a.masked_fill(FUTURE, -1e9).clamp(max=0.5),
}


@pytest.mark.parametrize("join", JOINS)
def test_masked_scores_that_no_rule_knows(join: str) -> None:
    """What a softmax reads tells by its numbers that some of them mask."""

    class Scores(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x.view(1, N, 4, 8).transpose(1, 2)
            return torch.softmax(JOINS[join](q @ q.transpose(-1, -2) * 8**-0.5), -1)

    model, inputs = Scores(), [(x,) for x, _ in samples()]
    quantized = converted(model, inputs, "ethos-u55-128", get_symmetric_quantization_config())
    assert sqnr_db(model(*inputs[0]), quantized(*inputs[0])) > 30


@pytest.mark.parametrize("target", ["ethos-u55-128", pytest.param("ethos-u85-256", marks=pytest.mark.long)])
def test_a_mask_that_is_subtracted(target: str) -> None:
    model, inputs = Layers(lambda keep: keep, "subtract"), samples(torch.float32)
    quantized = converted(model, inputs, target, get_symmetric_quantization_config())
    assert sqnr_db(model(*inputs[0]), quantized(*inputs[0])) > 30
    built = build_pte(quantized, inputs[0], EthosUCompileSpec(target))
    assert len(built.delegates) == 1
    assert sqnr_db(model(*inputs[0]), runtime.load(built.pte)(*inputs[0])[0]) > 30


def with_mask(value: float, bias: Tensor | float = 0.0) -> list[tuple[Tensor, Tensor]]:
    return [
        (x, (torch.zeros(1, 1, N, N) + bias).masked_fill(FUTURE | (keep == 0)[:, None, None, :], value)) for x, keep in samples()
    ]


@pytest.mark.parametrize("way", ["", "sdpa"])
@pytest.mark.parametrize("value", [INF, -1e9, LEAST, -1e4])
def test_a_mask_that_is_an_input(value: float, way: str) -> None:
    model, inputs = Layers(lambda mask: mask, way, 1 + (value == INF)), with_mask(value)
    quantized = converted(model, inputs, "ethos-u55-128", get_symmetric_quantization_config())
    assert sqnr_db(model(*inputs[0]), quantized(*inputs[0])) > 30


def test_a_mask_that_is_an_input_runs_on_the_npu() -> None:
    model, inputs = Layers(lambda mask: mask), with_mask(INF, torch.linspace(-0.5, 0.5, N))
    quantized = converted(model, inputs, "ethos-u85-256", get_symmetric_a16w8_quantization_config())
    wanted = model(*inputs[0])
    assert sqnr_db(wanted, quantized(*inputs[0])) > 40
    built = build_pte(quantized, inputs[0], EthosUCompileSpec("ethos-u85-256"))
    assert len(built.delegates) == 1
    assert sqnr_db(wanted, runtime.load(built.pte)(*inputs[0])[0]) > 40


def test_training_sees_no_mask_of_an_input() -> None:
    model, inputs = Layers(lambda mask: mask), with_mask(INF)
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128"))
    quantizer.set_global(get_symmetric_quantization_config(is_qat=True))
    prepared = prepare_qat_pt2e(torch.export.export(model.train(), inputs[0]).module(), quantizer)
    for sample in inputs:
        prepared(*sample).sum().backward()
    assert sqnr_db(model(*inputs[0]), convert_pt2e(prepared)(*inputs[0])) > 20


def test_a_bias_that_is_an_input_is_a_bias() -> None:
    """Numbers that do not lie apart are no mask: all of them count."""
    model, inputs = Layers(lambda bias: bias), [(x, 3 * torch.randn(1, 4, N, N)) for x, _ in samples()]
    quantized = converted(model, inputs, "ethos-u55-128", get_symmetric_quantization_config())
    assert sqnr_db(model(*inputs[0]), quantized(*inputs[0])) > 30


def test_a_product_that_no_softmax_reads_is_data() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return y * 1e4 + (1 - x) * -1e4

    inputs = [(torch.rand(3, N), torch.randn(3, N)) for _ in range(8)]
    quantized = converted(Scaled(), inputs, "ethos-u55-128", get_symmetric_quantization_config())
    assert sqnr_db(Scaled()(*inputs[0]), quantized(*inputs[0])) > 30


def rate_on(function: Any, inputs: list[tuple[Tensor, ...]]) -> float:
    model = Function(function)
    quantized = converted(model, inputs, "ethos-u85-256", get_symmetric_quantization_config())
    return sqnr_db(model(*inputs[0]), quantized(*inputs[0]))


def test_float_inputs_times_large_numbers_are_no_masks() -> None:
    torch.manual_seed(3)
    times = [(torch.randn(3, 16), 3e-4 * torch.rand(3, 16)) for _ in range(8)]
    assert rate_on(lambda x, t: torch.exp(t * -1e4), times) > 30
    assert rate_on(lambda x, t: torch.softmax(x - 1e4 * t, -1), times) > 30
    masks = [(x, (t > 2e-4).float()) for x, t in times]
    assert rate_on(lambda x, mask: torch.softmax(x + mask * -1e4, -1), masks) > 30
    assert rate_on(lambda x, mask: torch.softmax(x - mask * 1e9, -1), masks) > 30
    assert rate_on(lambda x, mask: torch.softmax(x - torch.tensor(1e9) * mask, -1), masks) > 30


@pytest.mark.parametrize("value", [-1e9, INF])
def test_unmasked_results_of_log_softmax(value: float) -> None:
    torch.manual_seed(4)
    inputs = [(torch.randn(3, 16), torch.rand(3, 16) < 0.3) for _ in range(8)]
    assert rate_on(lambda x, mask: x.masked_fill(mask, value).log_softmax(-1).masked_fill(mask, 0.0), inputs) > 30
    assert rate_on(lambda x, mask: x.masked_fill(mask & FUTURE[0, 0], value).log_softmax(-1)[:, :1], inputs) > 30


def test_masked_values_that_an_operator_reads_twice() -> None:
    torch.manual_seed(5)
    inputs = [(torch.randn(3, 16), torch.rand(3, 16) < 0.3) for _ in range(8)]

    def double(x: Tensor, mask: Tensor) -> Tensor:
        y = x.masked_fill(mask, -1e4)
        return torch.softmax(y + y, -1)

    assert rate_on(double, inputs) > 30


RAISED: dict[str, Any] = {
    "softmin": lambda x, mask, value: F.softmin(x.abs().masked_fill(mask, value), -1),
    "negated sum": lambda x, mask, value: torch.softmax(-(x.abs() + mask.float() * value), -1),
    "scaled where": lambda x, mask, value: torch.softmax(torch.where(mask, value, x * x).view(3, 4, 4) / -0.5, -1),
    "tensors before their factors": lambda x, mask, value: torch.softmax(
        torch.tensor(-2.0) * (x + torch.tensor(value) * mask.float()) / 2, -1
    ),
    "one minus": lambda x, mask, value: torch.softmax(1 - x.masked_fill(mask, value), -1),
    "join": lambda x, mask, value: torch.softmax(-torch.cat([x.masked_fill(mask, value), x], -1), -1),
    "exp": lambda x, mask, value: torch.exp(-x.abs().masked_fill(mask, value)),
    "argmin": lambda x, mask, value: x.masked_fill(mask, value).argmin(-1).float(),
}
EXTREMES: dict[str, Any] = {
    "amin of a sum": lambda x, mask, value: (x + mask.float() * value).amin(-1),
    "min": lambda x, mask, value: x.masked_fill(mask, value).min(-1)[0],
    "topk of a sum": lambda x, mask, value: (x + mask.float() * value).topk(3, largest=False)[0],
    "amax": lambda x, mask, value: x.masked_fill(mask, -value).amax(-1),
    "max pool": lambda x, mask, value: F.adaptive_max_pool1d((x - mask.float() * value)[None], 1),
    "sort": lambda x, mask, value: x.masked_fill(mask, -value).sort(-1, descending=True)[0][:, :3],
}


def draw_masked() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(6)
    return [(torch.randn(3, 16), (torch.rand(3, 16) < 0.3) & (torch.arange(16) >= 3)) for _ in range(8)]


@pytest.mark.parametrize("value", [1e4, pytest.param(1e9, marks=pytest.mark.long)])
@pytest.mark.parametrize("function", RAISED)
def test_a_large_number_before_a_negation_masks(function: str, value: float) -> None:
    assert rate_on(lambda x, mask: RAISED[function](x, mask, value), draw_masked()) > 30


@pytest.mark.parametrize("function", EXTREMES)
def test_an_extreme_ignores_masks(function: str, caplog: pytest.LogCaptureFixture) -> None:
    """A smaller number, which an extreme could return, remains a number. A warning says what it costs."""
    assert rate_on(lambda x, mask: EXTREMES[function](x, mask, 1e9), draw_masked()) > 30
    assert "[calibration.mask]" not in caplog.text
    rate_on(lambda x, mask: EXTREMES[function](x, mask, 1e4), draw_masked())
    assert "contains magnitudes of at least" in caplog.text
    assert "use -inf before a maximum and +inf before a minimum. [calibration.mask]" in caplog.text


def test_large_values_are_no_masks(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(7)
    times = [(torch.rand(3, 16),) for _ in range(8)]
    assert rate_on(lambda t: (t * 1e9).amin(-1), times) > 30
    assert rate_on(lambda t: (t * 1e5).amin(-1), times) > 30
    assert rate_on(lambda t: -(t * 1e5), times) > 30
    assert rate_on(lambda t: (t * -1e9).amax(-1), times) > 30
    assert rate_on(lambda t: torch.exp(torch.relu(t) * 1e-9 * -1e9), times) > 30
    assert rate_on(lambda t: torch.sigmoid(torch.relu(t - 0.5) * -1e9), times) > 20
    assert "[calibration.mask]" not in caplog.text

"""Attention masks in all the ways that users write them keep the scores' accuracy."""

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

N = 12
FUTURE = torch.ones(N, N, dtype=torch.bool).triu(1)
WAYS: dict[str, Any] = {
    "fill -inf": lambda a: a.masked_fill(FUTURE, float("-inf")),
    "fill -1e9": lambda a: a.masked_fill(FUTURE, -1e9),
    "fill -2e9": lambda a: a.masked_fill(FUTURE, -2e9),
    "fill least float": lambda a: a.masked_fill(FUTURE, torch.finfo(torch.float32).min),
    "fill tensor": lambda a: a.masked_fill(FUTURE, torch.tensor(-1e9)),
    "add -inf": lambda a: a + torch.zeros(N, N).masked_fill(FUTURE, float("-inf")),
    "add -1e9 and a bias": lambda a: a + torch.linspace(-1, 1, N).repeat(N, 1).masked_fill(FUTURE, -1e9),
    "where": lambda a: torch.where(FUTURE, torch.tensor(-1e9), a),
    "where scalar": lambda a: torch.where(FUTURE, float("-inf"), a),
    "where not": lambda a: torch.where(~FUTURE, a, -1e5),
    "fill, then divide": lambda a: a.masked_fill(FUTURE, -1e9) / torch.tensor(2.5),
    "fill, then multiply": lambda a: 0.7 * (a + torch.zeros(N, N).masked_fill(FUTURE, torch.finfo(torch.float32).min)),
    "fill, then add": lambda a: a.masked_fill(FUTURE, float("-inf")) + torch.linspace(-1, 1, N),
    "add, then maximum": lambda a: torch.max(
        a + torch.zeros(N, N).masked_fill(FUTURE, -1e9), torch.full((), torch.finfo(torch.float32).min)
    ),
    "fill, then clamp": lambda a: a.masked_fill(FUTURE, -1e9).clamp(min=torch.finfo(torch.float32).min),
    "pad, then add": lambda a: F.pad(a[..., :-2], (1, 1), value=-1e4) + torch.linspace(-1, 1, N),
    "fill, then fill": lambda a: (a.masked_fill(FUTURE, -1e9) + 1).masked_fill(FUTURE.roll(1, 0) & FUTURE, -1e9),
}


class Attention(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.way, self.qkv = way, nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(1, N, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.way in WAYS:
            return torch.softmax(WAYS[self.way](q @ k.transpose(-1, -2) * 8**-0.5), -1) @ v
        if self.way == "join":
            scores = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(FUTURE, float("-inf"))
            joined = torch.cat([scores, torch.linspace(-1, 1, 4).reshape(1, 4, 1, 1).expand(1, 4, N, 1)], -1)
            return torch.softmax(joined - joined.amax(-1, keepdim=True), -1)[..., :N] @ v
        if self.way == "causal":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        masks = {"bool": ~FUTURE, "float": torch.zeros(N, N).masked_fill(FUTURE, float("-inf"))}
        return F.scaled_dot_product_attention(q, k, v, attn_mask=masks[self.way])


def converted(model: nn.Module, samples: list[tuple[Tensor, ...]], config: Any = None) -> nn.Module:
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(config or get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model.eval(), samples[0]).module(), quantizer)
    for sample in samples:
        prepared(*sample)
    return convert_pt2e(prepared)


#: Other constants and orders of what the default run has.
SIMILAR = (
    *("fill -1e9", "fill least float", "fill tensor", "add -inf", "where scalar", "where not"),
    *("fill, then multiply", "fill, then clamp", "float"),
)


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.long] * (way in SIMILAR)) for way in (*WAYS, "join", "causal", "bool", "float")],
)
def test_a_constant_mask(way: str) -> None:
    model = Attention(way)
    torch.manual_seed(2)
    samples = [(torch.randn(1, N, 32),) for _ in range(8)]
    found, wanted = converted(model, samples)(*samples[0]), model(*samples[0])
    assert sqnr_db(wanted, found) > 25
    first = (found[..., 0, :] - wanted[..., 0, :]).abs().max()  # sees one position only: whatever leaks through shows
    assert first < 0.03 * wanted.abs().max()


@pytest.mark.parametrize(
    ("way", "moves"),
    [
        ("fill -inf", False),
        ("add -1e9 and a bias", True),
        ("where", False),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("fill -inf", True), ("add -1e9 and a bias", False), ("where", True))
        ),
    ],
)
def test_a_softmax_of_another_scheme_than_its_scores(way: str, moves: bool) -> None:
    """Its own observer of the masked scores must not count the mask."""

    class Raised(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.view(1, N, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            scores = WAYS[way](q @ k.transpose(-1, -2) * 8**-0.5)
            return torch.softmax(scores.reshape(4, N, N) if moves else scores, -1).reshape(1, 4, N, N) @ v

    model = Raised("")
    torch.manual_seed(2)
    samples = [(torch.randn(1, N, 32),) for _ in range(8)]
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u85-256")).set_global(get_symmetric_quantization_config())
    quantizer.set_node_target(torch.ops.aten.softmax.int, get_symmetric_a16w8_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model.eval(), samples[0]).module(), quantizer)
    for sample in samples:
        prepared(*sample)
    quantized = convert_pt2e(prepared)
    wanted = model(*samples[0])
    assert sqnr_db(wanted, quantized(*samples[0])) > 25
    if moves:
        built = build_pte(quantized, samples[0], EthosUCompileSpec("ethos-u85-256"))
        assert len(built.delegates) == 1
        assert sqnr_db(wanted, runtime.load(built.pte)(*samples[0])[0]) > 25


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_may_see_nothing_is_zero(kind: str) -> None:
    """As of PyTorch's own attention: softmax alone would make it the mean of all values."""

    class Deaf(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.view(1, N, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            heard = ~FUTURE & (torch.arange(N) % 3 > 0)[:, None]
            mask = heard if kind == "bool" else torch.zeros(N, N).masked_fill(~heard, float("-inf"))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    model = Deaf("")
    torch.manual_seed(2)
    samples = [(torch.randn(1, N, 32),) for _ in range(8)]
    found, wanted = converted(model, samples)(*samples[0]), model(*samples[0])
    assert not wanted[..., ::3, :].any() and not found[..., ::3, :].any()
    assert sqnr_db(wanted, found) > 25


def test_padding_is_known_at_run_time_only() -> None:
    class Padded(Attention):
        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            q, k, v = (part.view(1, N, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            scores = (q @ k.transpose(-1, -2)).masked_fill(keep[:, None, None] == 0, -1e9)
            return torch.softmax(scores, -1) @ v

    model = Padded("")
    torch.manual_seed(2)
    samples = [(torch.randn(1, N, 32), (torch.arange(N)[None] < 3 + k).float()) for k in range(8)]
    quantized = converted(model, samples)
    assert sqnr_db(model(*samples[0]), quantized(*samples[0])) > 25
    spec = EthosUCompileSpec("ethos-u55-128")
    built = build_pte(quantized, samples[0], spec)
    (found,) = runtime.load(built.pte)(*samples[0])
    assert len(built.delegates) == 1
    assert sqnr_db(model(*samples[0]), found) > 25


def test_large_numbers_that_are_data_stay_numbers() -> None:
    class Offset(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1e4 + torch.linspace(-5e4, 5e4, N)

    samples = [(torch.randn(3, N),) for _ in range(8)]
    assert sqnr_db(Offset()(*samples[0]), converted(Offset(), samples)(*samples[0])) > 30


FILLS: dict[str, Any] = {
    "result": lambda x: x.masked_fill(x > 0.5, -2e4),
    "positive": lambda x: x.masked_fill(x > 0.5, 2e4),
    "maximum": lambda x: torch.where(EMPTY, -1e4, x).amax(-1),
    "compared": lambda x: torch.where(torch.where(x > 0.5, x, -1e4) > -5e3, 1.0, -1.0),
    "leaky": lambda x: torch.nn.functional.leaky_relu(x.masked_fill(x > 0.5, -2e4), 0.1),
    "product": lambda x: x + (x > 0.5).float() * -1e4,
    "constant": lambda x: x + torch.zeros(N, N).masked_fill(FUTURE, -1e4),
    "also read by a softmax": lambda x: torch.softmax(x.masked_fill(FUTURE, -1e4), -1) + x.masked_fill(FUTURE, -1e4),
}
EMPTY = FUTURE | (torch.arange(N) == 3)[:, None]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("config", [get_symmetric_quantization_config(), get_symmetric_a16w8_quantization_config()])
def test_a_large_fill_that_other_operators_read_stays_a_number(fill: str, config: Any) -> None:
    class Fill(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return FILLS[fill](x)  # type: ignore[no-any-return]

    torch.manual_seed(2)
    samples = [(torch.randn(N, N),) for _ in range(8)]
    assert sqnr_db(Fill()(*samples[0]), converted(Fill(), samples, config)(*samples[0])) > 40


@pytest.mark.parametrize(
    "read",
    [
        lambda x: torch.softmax(torch.cat([x, torch.zeros(N, 1)], -1).view(1, N, N + 1) * 0.5, -1),
        lambda x: torch.softmax(x - x.amax(-1, keepdim=True), -1),
        torch.sigmoid,
        torch.nn.functional.silu,
        lambda x: torch.nn.functional.gelu(x * 2),
        lambda x: torch.relu(x.amax(-1)),
        lambda x: torch.nn.functional.one_hot(x.argmax(-1), N).float(),
        lambda x: torch.softmax(x.split(N // 2, 0)[1], -1),
    ],
    ids=["join", "shift", "sigmoid", "silu", "gelu", "relu", "argmax", "split"],
)
def test_a_large_fill_whose_number_does_not_matter_is_a_mask(read: Any) -> None:
    class Fill(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return read(x.masked_fill(FUTURE, -1e4))  # type: ignore[no-any-return]

    torch.manual_seed(2)
    samples = [(torch.randn(N, N),) for _ in range(8)]
    assert sqnr_db(Fill()(*samples[0]), converted(Fill(), samples)(*samples[0])) > 30


def test_a_module_left_in_float_keeps_its_numbers() -> None:
    class Fill(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.masked_fill(x > 0, -2e4)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.fill = nn.Linear(N, N), Fill()

        def forward(self, x: Tensor) -> Tensor:
            return self.fill(self.linear(x))

    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(get_symmetric_quantization_config())
    quantizer.set_module_name("fill", None)
    sample = (torch.randn(2, N),)
    prepared = prepare_pt2e(torch.export.export(Model().eval(), sample).module(), quantizer)
    prepared(*sample)
    assert convert_pt2e(prepared)(*sample).min() == -2e4


@pytest.mark.parametrize("way", ["add -inf", "fill -1e9", "causal"])
def test_training_sees_no_mask(way: str) -> None:
    model = Attention(way)
    torch.manual_seed(2)
    samples = [(torch.randn(1, N, 32),) for _ in range(12)]
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128"))
    quantizer.set_global(get_symmetric_quantization_config(is_qat=True))
    prepared = prepare_qat_pt2e(torch.export.export(model.train(), samples[0]).module(), quantizer)
    for sample in samples:
        prepared(*sample).sum().backward()
    found, wanted = convert_pt2e(prepared)(*samples[0]), model(*samples[0])
    assert sqnr_db(wanted, found) > 22
    assert (found[..., 0, :] - wanted[..., 0, :]).abs().max() < 0.05 * wanted.abs().max()

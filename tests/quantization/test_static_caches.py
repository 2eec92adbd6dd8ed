"""Decoders with static caches, written by hand, with int64 positions: nothing but conversions is on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ethorch
from ethorch.program.program import record_of

VOCABULARY, WIDTH, HEADS, LENGTH = 61, 32, 4, 24
HEAD = WIDTH // HEADS
#: How the CPU hands over inputs and takes outputs, and how it writes rows of a cache in place.
CONVERSIONS = ("_to_dim_order_copy", "quantize_per_tensor", "dequantize_per_tensor", "index_put_")


def caches(heads: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(1, heads, LENGTH, HEAD), torch.zeros(1, heads, LENGTH, HEAD)


class Grouped(nn.Module):
    """index_copy_ into caches of grouped heads, angles computed of the position, a mask of comparisons."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        for name, cache in zip(("keys", "values"), caches(HEADS // 2), strict=True):
            self.register_buffer(name, cache)
        self.register_buffer("frequencies", 1e4 ** -(torch.arange(0, HEAD, 2) / HEAD))

    def turned(self, x: Tensor, position: Tensor) -> Tensor:
        angles = (position[:, None] * self.frequencies).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.tokens(token)
        y = self.norm(x)
        q = self.q(y).view(1, -1, HEADS, HEAD).transpose(1, 2)
        k, v = (part.view(1, -1, HEADS // 2, HEAD).transpose(1, 2) for part in self.kv(y).chunk(2, -1))
        self.keys.index_copy_(2, position, self.turned(k, position))
        self.values.index_copy_(2, position, v)
        seen = torch.arange(LENGTH)[None, :] <= position[:, None]
        k, v = self.keys.repeat_interleave(2, 1), self.values.repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(self.turned(q, position), k, v, attn_mask=seen)
        return (x + self.out(y.transpose(1, 2).reshape(1, -1, WIDTH))) @ self.tokens.weight.T


class Learned(nn.Module):
    """int32 inputs that are cast to int64, learned positions, assignment to rows, a mask that is a table of -1e9."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.qkv, self.out, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        for name, cache in zip(("keys", "values"), caches(HEADS), strict=True):
            self.register_buffer(name, cache)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -1e9).triu(1))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        position = position.to(torch.int64)
        x = self.tokens(token) + self.places(position)
        q, k, v = (part.view(1, -1, HEADS, HEAD).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        self.keys[:, :, position] = k
        self.values[:, :, position] = v
        scores = q @ self.keys.transpose(-1, -2) / math.sqrt(HEAD) + self.mask[position]
        return x + self.out((scores.softmax(-1) @ self.values).transpose(1, 2).reshape(1, -1, WIDTH))


class Chunked(nn.Module):
    """Several tokens from a scalar position on, tables of angles, a sliding window of differences."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.qkv, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        for name, cache in zip(("keys", "values"), caches(HEADS), strict=True):
            self.register_buffer(name, cache)
        self.register_buffer("cosines", torch.rand(LENGTH, HEAD))

    def forward(self, tokens: Tensor, start: Tensor) -> Tensor:
        position = start + torch.arange(tokens.shape[1])
        x = self.tokens(tokens)
        q, k, v = (part.view(1, -1, HEADS, HEAD).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        self.keys[:, :, position, :] = k * self.cosines[position]
        self.values[:, :, position, :] = v
        distance = position[:, None] - torch.arange(LENGTH)
        bias = torch.where((distance < 0) | (distance >= 12), -1e9, 0.0)
        y = F.scaled_dot_product_attention(q * self.cosines[position], self.keys, self.values, attn_mask=bias)
        return x + self.out(y.transpose(1, 2).reshape(1, -1, WIDTH))


def calls(model: type[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    dtype, count = (torch.int32 if model is Learned else torch.int64), (3 if model is Chunked else 1)
    tokens = [torch.randint(0, VOCABULARY, (1, count), dtype=dtype) for _ in range(6)]
    return [(token, torch.tensor(step * count if count > 1 else [step], dtype=dtype)) for step, token in enumerate(tokens)]


@pytest.mark.parametrize(
    ("model", "scheme"),
    [
        (Grouped, "int8"),
        (Learned, "a16w8"),
        (Chunked, "int8"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((Grouped, "a16w8"), (Learned, "int8"))),
    ],
)
def test_no_operator_is_on_the_cpu(model: type[nn.Module], scheme: str) -> None:
    inputs = calls(model)
    torch.manual_seed(1)
    program = ethorch.compile(model(), inputs[0], "ethos-u85-256", calibration=inputs, scheme=scheme, progress=False)
    assert record_of(program).build is not None
    assert len(record_of(program).build.delegates) == 1
    assert record_of(program).build.partition.refusals == []
    on_cpu = [row.operator for row in program.explain().operators if row.where == "CPU"]
    assert [name for name in on_cpu if name.split(".")[1].removesuffix(".out") not in CONVERSIONS] == []
    torch.manual_seed(1)
    by_hand = model()
    wanted = torch.cat([by_hand(*call) for call in inputs])
    assert ethorch.sqnr_db(wanted, torch.cat([program(*call) for call in inputs])) > (25 if scheme == "int8" else 40)

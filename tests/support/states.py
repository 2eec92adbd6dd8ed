"""Models that keep something from call to call, as users write them; each is given one frame or token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, QuantizationConfig, flow

Inputs = tuple[Any, ...]


class Denoiser(nn.Module):
    """A mask for the bands of one frame, by a GRU cell between two layers."""

    h: Tensor

    def __init__(self, bands: int = 8, width: int = 16) -> None:
        super().__init__()
        self.into, self.cell, self.out = nn.Linear(bands, width), nn.GRUCell(width, width), nn.Linear(width, bands)
        self.register_buffer("h", torch.zeros(1, width))

    def forward(self, frame: Tensor) -> Tensor:
        self.h.copy_(self.cell(torch.relu(self.into(frame)), self.h))
        return frame * torch.sigmoid(self.out(self.h))

    def unrolled(self, frames: Tensor) -> Tensor:
        """[T, bands] -> [T, bands] in one call."""
        h, outputs = torch.zeros_like(self.h), []
        for frame in frames.split(1):
            h = self.cell(torch.relu(self.into(frame)), h)
            outputs.append(frame * torch.sigmoid(self.out(h)))
        return torch.cat(outputs)


class Layered(nn.Module):
    """torch.nn.LSTM over one frame: two states, of a layer that starts from zero by its initial contents alone."""

    h: Tensor
    c: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 10, batch_first=True)
        self.register_buffer("h", torch.zeros(1, 1, 10))
        self.register_buffer("c", torch.zeros(1, 1, 10))

    def forward(self, frame: Tensor) -> Tensor:
        y, (h, c) = self.lstm(frame, (self.h, self.c))
        self.h.copy_(h)
        self.c.copy_(c)
        out: Tensor = y
        return out


class Streaming(nn.Module):
    """Two depthwise convolutions over time, the second one dilated, with the frames that they look back at as state."""

    first: Tensor
    second: Tensor

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(channels, channels, 3, groups=channels), nn.Conv1d(channels, channels, 1)
        self.c, self.d = nn.Conv1d(channels, channels, 3, dilation=2, groups=channels), nn.Conv1d(channels, 4, 1)
        self.register_buffer("first", torch.zeros(1, channels, 2))
        self.register_buffer("second", torch.zeros(1, channels, 4))

    def forward(self, frame: Tensor) -> Tensor:
        x = torch.cat([self.first, frame], 2)
        self.first.copy_(x[:, :, 1:])
        x = torch.cat([self.second, torch.relu(self.b(self.a(x)))], 2)
        self.second = x[:, :, 1:]
        out: Tensor = self.d(self.c(x))
        return out


class Attention(nn.Module):
    """One head over a cache of keys and values, written at the position that is given."""

    keys: Tensor
    values: Tensor
    places: Tensor

    def __init__(self, length: int = 60, width: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.register_buffer("keys", torch.zeros(1, length, width))
        self.register_buffer("values", torch.zeros(1, length, width))
        self.register_buffer("places", torch.arange(length, dtype=torch.int32))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.keys.index_copy_(1, position, self.k(x))
        self.values.index_copy_(1, position, self.v(x))
        scores = self.q(x) @ self.keys.transpose(1, 2)
        weights = torch.softmax(scores.masked_fill(self.places > position.to(torch.int32), -100.0), -1)
        return weights @ self.values


class Slots(nn.Module):
    """Two rows of a table that each call overwrites, at places that the model knows, and a third in the middle of a row."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("table", torch.linspace(-1, 1, 80).reshape(10, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.table[2:3] = self.a(x)
        self.table[7] = self.b(x)[0]
        self.table[9, 2:5] = x[0, :3]
        return torch.tanh(self.table.sum(0, keepdim=True))


class Ring(nn.Module):
    """A cache that is moved on by one place in each step: no position."""

    keys: Tensor

    def __init__(self, length: int = 6, width: int = 8) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(1, length, width))

    def forward(self, x: Tensor) -> Tensor:
        self.keys.copy_(torch.cat([self.keys[:, 1:], self.k(x)], 1))
        return torch.softmax(self.q(x) @ self.keys.transpose(1, 2), -1) @ self.keys


class Mean(nn.Module):
    """Takes a running mean off its input; begins with something other than zeros."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1, 1, 8).reshape(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.75).add_(x, alpha=0.25)
        return torch.tanh(x - self.mean)


@dataclass(frozen=True)
class Case:
    """A model, the NPU that runs all of it, one step's inputs, and the names of its states."""

    model: Callable[[], nn.Module]
    target: str
    step: Callable[[int, torch.Generator], Inputs]
    states: tuple[str, ...]

    def steps(self, count: int, seed: int = 0) -> list[Inputs]:
        generator = torch.Generator().manual_seed(seed)
        return [self.step(number, generator) for number in range(count)]

    def quantized(self, config: QuantizationConfig | None = None, count: int = 12) -> tuple[Any, list[Inputs], EthosUCompileSpec]:
        """The converted graph, the steps that it is calibrated with, and what it is compiled for."""
        torch.manual_seed(1)
        spec, steps = EthosUCompileSpec(self.target), self.steps(count)
        return flow.quantize(flow.UserModel(self.model().eval(), steps[0], steps), spec, config), steps, spec


def _frames(*shape: int) -> Callable[[int, torch.Generator], Inputs]:
    return lambda number, generator: (torch.randn(*shape, generator=generator),)


CASES = {
    "denoiser": Case(Denoiser, "ethos-u55-128", _frames(1, 8), ("h",)),
    "lstm": Case(Layered, "ethos-u65-256", _frames(1, 1, 6), ("h", "c")),
    "streaming": Case(Streaming, "ethos-u55-128", _frames(1, 8, 1), ("first", "second")),
    "attention": Case(
        Attention,
        "ethos-u85-256",
        lambda number, generator: (torch.randn(1, 1, 8, generator=generator), torch.tensor([number % 60], dtype=torch.int32)),
        ("keys", "values"),
    ),
    "wide positions": Case(
        Attention,
        "ethos-u85-256",
        lambda number, generator: (torch.randn(1, 1, 8, generator=generator), torch.tensor([number % 60])),
        ("keys", "values"),
    ),
    "slots": Case(Slots, "ethos-u55-128", _frames(1, 8), ("table",)),
    "ring": Case(Ring, "ethos-u55-128", _frames(1, 1, 8), ("keys",)),
    "mean": Case(Mean, "ethos-u55-128", _frames(1, 8), ("mean",)),
}


def run(module: Any, steps: Sequence[Inputs]) -> list[Tensor]:
    """The first output of each step, one after the other."""
    outputs = []
    with torch.no_grad():
        for inputs in steps:
            given = module(*inputs)
            outputs.append((given[0] if isinstance(given, (list, tuple)) else given).clone())
    return outputs

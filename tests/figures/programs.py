"""Small programs of every kind that figures are taken of, built once in a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from bench.models import VARIOUS
from ethorch import EthosUCompileSpec
from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from ethorch.models.load import Inputs, UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.quantization.config import QuantizationConfig, get_symmetric_a16w8_quantization_config


class Picture(nn.Module):
    """Two convolutions, a sigmoid, a mean, a classifier: one delegate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.wide(torch.relu(self.stem(x))))
        return self.head(x.mean((2, 3)))


class TwoDelegates(nn.Module):
    """The CPU's topk stands between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.topk(torch.relu(self.first(x)), 8, dim=3).values)


class State(nn.Module):
    """Adds to a buffer that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("total", torch.zeros(1, 16))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(torch.relu(self.linear(x)))
        return self.total * 0.5


class Words(nn.Module):
    """Rows of a table, which the CPU picks on U55, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(64, 32), nn.Linear(32, 8)

    def forward(self, words: Tensor) -> Tensor:
        return self.linear(self.table(words))


class OnCpu(nn.Module):
    """Nothing for the NPU."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 0) * 3


class ThreeDelegates(nn.Module):
    """Two topk, which the CPU runs, between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(24, 32), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.topk(torch.relu(self.first(x)), 24).values
        return self.last(torch.topk(self.second(x), 8).values)


@dataclass(frozen=True)
class Case:
    """How a program is made."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    target: str = "ethos-u55-128"
    config: QuantizationConfig | None = None


def _noise(*shape: int) -> Callable[[], Inputs]:
    return lambda: (torch.randn(shape),)


def _small(name: str) -> Case:
    case = VARIOUS[name]
    return Case(case.build, case.example_inputs)


CASES: dict[str, Case] = {
    "picture": Case(Picture, _noise(1, 3, 32, 32)),
    "picture_u85_sram_only": Case(Picture, _noise(1, 3, 32, 32), "ethos-u85-256"),
    "picture_u65_dedicated_sram": Case(Picture, _noise(1, 3, 32, 32), "ethos-u65-512"),
    "picture_int16": Case(Picture, _noise(1, 3, 32, 32), config=get_symmetric_a16w8_quantization_config(is_per_channel=True)),
    "copy_u85": Case(nn.Flatten, _noise(1, 3, 5), "ethos-u85-256"),  # a single DMA transfer
    "two_delegates": Case(TwoDelegates, _noise(1, 3, 8, 8)),
    "state": Case(State, _noise(1, 16)),
    "words": Case(Words, lambda: (torch.arange(12).reshape(1, 12),)),
    "on_cpu": Case(OnCpu, lambda: (torch.arange(12),)),
    "joined_inputs": _small("joined_inputs"),
    "three_delegates": Case(ThreeDelegates, _noise(1, 16)),
    "branches": _small("branches"),
    "small_gru": _small("small_gru"),
}


@cache
def built(name: str) -> Build:
    """The program of a case; the same bytes each time."""
    case = CASES[name]
    torch.manual_seed(0)
    user = UserModel(case.model().eval(), case.inputs())
    spec = EthosUCompileSpec(case.target)
    return build_pte(quantize(user, spec, case.config), user.example_inputs, spec)

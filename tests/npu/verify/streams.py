"""Streams to verify: compiled by Vela, with the memory of their delegates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

import ethorch
from ethorch import npu
from ethorch.formats.payload import DelegatePayload
from ethorch.npu.verify import Image
from ethorch.program.program import record_of


@dataclass(frozen=True, eq=False)
class Case:
    """A driver payload and its memory."""

    name: str
    payload: bytes
    image: Image


class Blocks(nn.Module):
    """Convolutions, a residual addition, a table, and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.third, self.last = nn.Conv2d(16, 16, 1), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = torch.sigmoid(self.third(torch.relu(self.second(x)))) + x
        z = torch.cat([torch.tanh(y), nn.functional.max_pool2d(x, 3, 1, 1)], 1)
        logits: torch.Tensor = self.last(torch.tanh(z.mean((2, 3))))
        return logits


class Attention(nn.Module):
    """One attention layer."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.output = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).reshape(1, 12, 3, 2, 8).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * 0.35, -1)
        result: torch.Tensor = self.output((weights @ v).transpose(1, 2).reshape(1, 12, 16))
        return result


class Classifier(nn.Module):
    """Convolutions whose computation hides transfers, and a layer with many weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 24, 3, padding=1), nn.Conv2d(24, 16, 3, padding=1)
        self.third, self.head = nn.Conv2d(16, 16, 3, stride=4), nn.Linear(16 * 16, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.third(torch.relu(self.second(torch.relu(self.first(x))))))
        logits: torch.Tensor = self.head(x.flatten(1))
        return logits


class Heads(nn.Module):
    """Heads that are split, changed and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.each, self.output = nn.Linear(16, 32), nn.Linear(16, 16), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).reshape(1, 12, 2, 16).transpose(1, 2)
        result: torch.Tensor = self.output(torch.relu(self.each(heads)).transpose(1, 2).reshape(1, 12, 32))
        return result


class Joined(nn.Module):
    """Tokens of an image after a constant token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Conv2d(3, 24, 2, 2), nn.Linear(24, 8)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 17, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([self.token, self.embed(x).flatten(2).transpose(1, 2)], 1)
        result: torch.Tensor = self.last(torch.relu(tokens + self.positions))
        return result


class Steps(nn.Module):
    """float[1, 8, 32] -> float[1, 48]: a recurrent layer over eight steps."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(32, 48, batch_first=True), nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last: torch.Tensor = self.head(self.recurrent(x)[0][:, -1])
        return last


class Swapped(nn.Module):
    """Rows in another order, and heads as outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 128)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x).transpose(0, 1), self.project(x).unflatten(-1, (4, 32)).transpose(1, 2)


class Rotary(nn.Module):
    """float[1, 16, 32] -> float[1, 2, 16, 16]: a rotary embedding of two heads, with adjacent pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.project, angles = nn.Linear(32, 32), torch.arange(16.0)[:, None, None] / torch.arange(1, 9)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = self.project(x).reshape(1, 16, 2, 8, 2)
        first, second = pairs.unbind(-1)
        turned = (first * self.cosines - second * self.sines, first * self.sines + second * self.cosines)
        return torch.stack(turned, -1).flatten(3).transpose(1, 2)


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "blocks": (Blocks, (1, 3, 12, 12)), "attention": (Attention, (1, 12, 16)), "classifier": (Classifier, (1, 8, 18, 18)),
    "steps": (Steps, (1, 8, 32)), "heads": (Heads, (1, 12, 16)), "joined": (Joined, (1, 3, 8, 8)),
    "swapped": (Swapped, (3, 40, 32)), "rotary": (Rotary, (1, 16, 32)),
}  # fmt: skip


@cache
def compile_case(network: str, target: str) -> Case:
    """Return a small network compiled for a target."""
    torch.manual_seed(0)
    build, shape = NETWORKS[network]
    calibration = [(torch.randn(shape),) for _ in range(4)]
    settings = ethorch.Settings(stream="vela")
    program = ethorch.compile(build().eval(), calibration[0], target, calibration=calibration, settings=settings)
    return from_delegate(f"{network} {target}", record_of(program).payloads[0])


def from_delegate(name: str, payload: DelegatePayload, staging_bytes: int | None = None) -> Case:
    """Return the case of a delegate. Default for ``staging_bytes``: the bytes that the stream can reach."""
    constants = np.frombuffer(payload.weights, np.uint8)
    if staging_bytes is None:
        staging_bytes = npu.staging_bytes(npu.Program(payload.commands, payload.weights))
    sizes = {1: payload.scratch_bytes, 2: staging_bytes}
    places = [
        tuple((tensor.region, tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors)
        for tensors in (payload.inputs, payload.outputs)
    ]
    return Case(name, payload.commands, Image(constants, {n: size for n, size in sizes.items() if size}, *places))


def benchmark_cases() -> Iterator[tuple[str, str]]:
    """Iterate over (network, target) of the benchmarks."""
    from bench.compile import DEFAULT_TARGETS
    from bench.models import ALL_MODELS

    for target in DEFAULT_TARGETS:
        for name in ALL_MODELS:
            yield name, target


def compile_benchmark(name: str, target: str) -> list[Case]:
    """Return the delegates of a benchmark network, compiled as ``bench`` compiles it."""
    from bench.implementation import memory_for
    from bench.models import ALL_MODELS
    from ethorch.models.load import UserModel
    from ethorch.program.build import build_program, single_method
    from ethorch.targets.settings import Settings

    case = ALL_MODELS[name]
    user = UserModel(case.build(), case.example_inputs(), case.calibration(2))
    system_config, memory_mode = memory_for(target)
    record = build_program(
        single_method(user), Settings(target, system_config=system_config, memory_mode=memory_mode, stream="vela")
    )
    assert record.build is not None
    models = [delegate.compiled for delegate in record.build.delegates]
    return [from_delegate(f"{name} {target}", model.payload, model.scratch_fast_bytes) for model in models]

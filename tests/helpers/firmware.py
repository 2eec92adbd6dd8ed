"""Networks for firmware, their programs and projects, built with ziglang and run on the virtual board."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ethorch
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.firmware import Firmware, firmware
from tests.helpers.compiling import compile_with

TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256", "ethos-u85-1024")


class Small(nn.Module):
    """A small classifier: convolution, depthwise block, average, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.classifier = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.depthwise(F.relu(self.stem(x))))
        return self.classifier(x.mean((2, 3)))


class Rolled(nn.Module):
    """A model with a CPU operator, because one module is float."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.roll(x, 3, -1)


class TwoDelegates(nn.Module):
    """NPU, CPU, NPU: the CPU and the second delegate read the first delegate's result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)
        self.middle = Rolled()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.first(x))
        return self.second(self.middle(x)), x.amax((2, 3))


class Sorts(nn.Module):
    """NPU, topk on the CPU, NPU. The C++ library determines the order of equal values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.topk(F.relu(self.first(x)), 6, dim=-1)[0])


class Counts(nn.Module):
    """A recurrent cell with its state in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 8)
        self.register_buffer("state", torch.zeros(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        state = torch.tanh(self.cell(x) + self.state)
        self.state.copy_(state)
        return state * 2


class Attends(nn.Module):
    """Two attention heads, whose products may run on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part(x).reshape(12, 2, 8).transpose(0, 1) for part in self.parts)
        return torch.softmax(query @ key.transpose(1, 2) / 3, -1) @ value


@dataclass(frozen=True)
class Network:
    """A network, its inputs, and compiler settings."""

    make: Callable[[], nn.Module]
    sample: Callable[[], tuple[Any, ...]]
    options: tuple[tuple[str, Any], ...] = ()


NETWORKS = {
    "small": Network(Small, lambda: (torch.randn(1, 1, 8, 8),)),
    "two_delegates": Network(TwoDelegates, lambda: (torch.randn(1, 3, 8, 8),), (("modules", (("middle", "float"),)),)),
    "sorts": Network(Sorts, lambda: (torch.randn(1, 3, 8, 8),)),
    "state": Network(Counts, lambda: (torch.randn(1, 8),)),
    "sixteen_bits": Network(Small, lambda: (torch.randn(1, 1, 8, 8),), (("scheme", "a16w8"),)),
    "products_on_cpu": Network(Attends, lambda: (torch.randn(1, 12, 16),), (("partition", "cpu-matmul"),)),
    "codes": Network(Small, lambda: (torch.randn(1, 1, 8, 8),), (("io", "int8"),)),
}
#: Networks of bench.models, for long tests.
PUBLIC = ("ds_cnn", "resnet8", "autoencoder", "lstm", "mobilenet_v2")


@cache
def program(name: str, target: str) -> ethorch.Program:
    """Return a network's program, shared by all tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if name in NETWORKS:
            network = NETWORKS[name]
            module, calibration = network.make().eval(), [network.sample() for _ in range(4)]
            options = {key: dict(value) if key == "modules" else value for key, value in network.options}
        else:
            from bench.models import ALL_MODELS

            case = ALL_MODELS[name]
            module, calibration, options = case.build(), case.calibration(4), {}
        return compile_with(module, calibration[0], target, calibration=calibration, progress=False, **options)


def project(name: str, target: str, folder: Path, **options: Any) -> Firmware:
    """Write the project of a network's program."""
    return firmware(program(name, target), folder, **options)


def built_and_run(folder: Path, options: project_run.Options | None = None, **more: Any) -> Any:
    """Build a project and run it on the virtual board. Every output must equal that of the local runtime."""
    elf = project_run.build(folder, options)
    described = project_run.read_description(folder)
    done = project_run.run(folder, elf, timeout=300, **more)
    outputs = project_run.outputs(done.text, described)
    assert outputs and all(output.equal for output in outputs), (done.text, done.faults)
    assert done.ok, (done.text, done.faults, done.ended)
    assert "PASS" in done.text.split()
    return done

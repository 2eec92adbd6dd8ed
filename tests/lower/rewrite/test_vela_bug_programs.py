"""Modules whose programs Vela gets wrong: the NPU's bytes are those of the TOSA reference model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.program.program import record_of


class Function(nn.Module):
    """``function`` of a layer and the inputs."""

    def __init__(self, function: Callable[..., Any], layer: nn.Module):
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.layer, *inputs)


@dataclass(frozen=True)
class Example:
    """A function of a layer and of inputs of some shapes, for the NPUs that get it wrong."""

    function: Callable[..., Any]
    layer: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    targets: tuple[str, ...]
    scheme: str = "int8"


def modulated(layer: nn.Module, x: Tensor, e: Tensor) -> Tensor:
    return layer(x) * (1 + e[:, None, 32:48]) + e[:, None, 64:80]


def products_of_rows(layer: nn.Module, x: Tensor) -> Tensor:
    part = x.narrow(1, 2, 1)
    return part @ part.transpose(-1, -2)


def chosen(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    return torch.where((x > y) | (x < 0.3), x, y)


def outer_beside(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return layer(x), torch.einsum("bic,bjc->bij", x, x)


def chosen_beside(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(x > 0.1, x.abs(), x), layer(x)


def soft_sign(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    return y / (y.abs() + 1)


def index_beside(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.relu(x), x.argmax(2).float()


def gathered(layer: nn.Module, x: Tensor) -> Tensor:
    index = torch.arange(65_536, dtype=torch.int32).reshape(1, 64, 32, 32) * 7 % 32
    return torch.relu(x).gather(2, index.long())


def lowest_of_resized(layer: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False).amin(-1, keepdim=True)


EXAMPLES = {
    "broadcast slice in a chain": Example(modulated, lambda: nn.Linear(16, 16), ((1, 6, 16), (1, 96)), ("ethos-u85-256",)),
    "product of one slice": Example(products_of_rows, nn.Identity, ((1, 4, 8, 5),), ("ethos-u55-128", "ethos-u65-256")),
    "choice of an input in planes": Example(chosen, lambda: nn.Conv2d(2, 2, 1), ((1, 2, 6, 24),), ("ethos-u85-256",)),
    "outer product of an input in shapes": Example(
        outer_beside, lambda: nn.Linear(1, 5), ((1, 24, 1),), ("ethos-u55-128", "ethos-u65-256")
    ),
    "int16 choice of an input in planes": Example(
        chosen_beside, lambda: nn.Conv1d(2, 2, 3, padding=2), ((1, 2, 16),), ("ethos-u85-256",), "a16w8"
    ),
    "table of a transpose": Example(soft_sign, lambda: nn.Conv2d(1, 4, 3), ((1, 1, 16, 3),), ("ethos-u55-32", "ethos-u55-64")),
    "argmax of a column": Example(index_beside, nn.Identity, ((1, 3, 4, 1),), ("ethos-u85-256",)),
    "halves of a resized map": Example(lowest_of_resized, nn.Identity, ((1, 1, 2, 2),), ("ethos-u85-256",), "a16w8"),
    "65,536 rows": Example(gathered, nn.Identity, ((1, 64, 32, 32),), ("ethos-u85-256",)),
}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=[pytest.mark.long] * (target != each.targets[0]))
        for name, each in EXAMPLES.items()
        for target in each.targets
    ],
)
def test_programs(name: str, target: str) -> None:
    each = EXAMPLES[name]
    torch.manual_seed(0)
    module, inputs = Function(each.function, each.layer()).eval(), tuple(torch.randn(*shape) for shape in each.shapes)
    program = ethorch.compile(module, inputs, target, scheme=each.scheme, settings=ethorch.Settings(verify=False))
    assert record_of(program).build is not None
    assert len(record_of(program).build.delegates) == 1 and not record_of(program).build.partition.refusals
    assert program.compare(*inputs).bit_exact

"""Shapes that no delegate has: unknown before a model runs, or with a stride of 0."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, runtime
from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize

SPEC = EthosUCompileSpec("ethos-u55-128")


def built(model: nn.Module, inputs: tuple[Tensor, ...]) -> Build:
    user = UserModel(model.eval(), inputs, [inputs])
    return build_pte(quantize(user, SPEC), inputs, SPEC)


class Found(nn.Module):
    """A linear layer, and the places where its input is positive: as many rows as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), torch.nonzero(x > 0) + 1


def test_a_shape_that_depends_on_values_stays_on_the_cpu() -> None:
    model, inputs = Found(), (torch.randn(3, 8),)
    build = built(model, inputs)
    assert len(build.delegates) == 1
    assert "graph.shape_of_values" in {refusal.reason.id for refusal in build.partition.refusals}


class First(nn.Module):
    """Rows of a table at places that are a constant, and an expanded one, as BART's positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(4, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(1, dtype=torch.long).expand(x.shape[0], -1) + 2
        return self.layer(x) + self.table(places)


def test_a_constant_of_one_element_that_was_expanded_has_strides_that_executorch_takes() -> None:
    model, inputs = First(), (torch.randn(1, 1, 8),)
    program = runtime.load(built(model, inputs).pte)
    torch.testing.assert_close(program(*inputs)[0], model(*inputs), atol=0.05, rtol=0)

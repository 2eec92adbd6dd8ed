"""Parts of a ``cat`` or ``stack`` that equal an operand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ethorch.lower.fx.node import op_name
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.pipeline import run_passes


class Call(nn.Module):
    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.relu(), x.sigmoid(), x.transpose(0, 1)


REPLACED: dict[str, Callable[[Tensor], Tensor]] = {
    "select": lambda x: torch.stack(parts(x), 1)[:, 1],
    "last": lambda x: torch.stack(parts(x)[:2])[-1],
    "operand": lambda x: torch.cat(parts(x)[:2], 1)[:, 6:],
}
KEPT: dict[str, Callable[[Tensor], Tensor]] = {
    "part of an operand": lambda x: torch.cat(parts(x)[:2])[7:11],
    "two operands": lambda x: torch.cat(parts(x)[:2], 1)[:, 4:8],
    "other axis": lambda x: torch.stack(parts(x))[:, 1],
    "step": lambda x: torch.cat(parts(x)[:2], 1)[:, 6::2],
    "input": lambda x: torch.stack([x, x.relu()])[0],
    "strides": lambda x: torch.stack(parts(x))[2].view(-1),
}


def names(function: Callable[[Tensor], Tensor], x: Tensor) -> set[str]:
    module = Call(function)
    passed = run_passes(torch.export.export(module.eval(), (x,)).module(check_guards=False), PassContext())
    torch.testing.assert_close(passed(x), module(x))
    return {op_name(node.target) for node in passed.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("name", [*REPLACED, *KEPT])
def test_parts_of_joins(name: str) -> None:
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    joins = {"aten.cat.default", "aten.stack.default"}
    assert bool(names((REPLACED | KEPT)[name], x) & joins) == (name in KEPT)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_last_output_of_a_recurrent_layer_needs_no_others(kind: type[nn.RNNBase], batch_first: bool) -> None:
    layer = kind(6, 4, batch_first=batch_first)
    x = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0))
    assert "aten.stack.default" not in names(lambda x: layer(x)[0][:, -1] if batch_first else layer(x)[0][-1], x)

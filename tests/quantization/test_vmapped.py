"""torch.vmap: the graph holds operators of whole tensors, which compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ethorch
from ethorch.program.program import record_of
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.functionalize import functionalize
from ethorch.quantization.passes.vmapped import inline_vmapped
from tests.helpers.quantized import exported


class MaskOfPositions(nn.Module):
    """A mask made of four vmaps, one in the other, as ``create_block_mask`` makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("period", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q >= k) | ((q + k) % self.period == 0)

        made = mask
        for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
            made = torch.vmap(made, in_dims=dims)
        allowed = made(torch.arange(1), torch.arange(2), torch.arange(6), torch.arange(6))
        return torch.where(allowed, x, 0.0)


class OfInputs(nn.Module):
    """A batch of rows through a function of one row, with a write in place."""

    def forward(self, x: Tensor) -> Tensor:
        def scaled(row: Tensor, other: Tensor) -> Tensor:
            made = torch.zeros_like(row)
            made[2:4] = other[:2] * 2
            return made * row.sum() + other

        return torch.vmap(scaled)(x[0], x[0] + 1) + 1


class Flexible(nn.Module):
    """flex_attention in a causal block mask, with a bias by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        def nearer(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score - 0.01 * (q - k)

        found = flex_attention(x, x * 0.5, x + 1, score_mod=nearer, block_mask=self.mask)
        assert isinstance(found, Tensor)
        return found


def test_flex_attention_is_one_delegate() -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 2, 128, 8),)
    module = Flexible().eval()
    program = ethorch.compile(module, inputs, "ethos-u55-128", progress=False)
    assert record_of(program).build is not None
    assert len(record_of(program).build.delegates) == 1
    assert not record_of(program).build.partition.refusals
    assert ethorch.sqnr_db(module(*inputs), program(*inputs)) > 20


@pytest.mark.parametrize("module", [MaskOfPositions(), OfInputs()], ids=["mask", "inputs"])
def test_vmap_is_taken_apart(module: nn.Module) -> None:
    x = torch.randn(1, 2, 6, 6)
    inputs = (x,) if isinstance(module, MaskOfPositions) else (x[0],)
    graph = exported(module, inputs)
    inline_vmapped(graph)
    functionalize(graph, PassContext())
    graph.recompile()
    assert not any("predispatch" in str(getattr(node.target, "__module__", "")) for node in graph.graph.nodes)
    torch.testing.assert_close(graph(*inputs), module(*inputs))


def test_a_vmapped_mask_is_a_constant_of_one_delegate() -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 2, 6, 6),)
    program = ethorch.compile(MaskOfPositions(), inputs, "ethos-u85-256", progress=False)
    assert record_of(program).build is not None
    assert len(record_of(program).build.delegates) == 1
    assert not record_of(program).build.partition.refusals
    assert ethorch.sqnr_db(MaskOfPositions()(*inputs), program(*inputs)) > 35

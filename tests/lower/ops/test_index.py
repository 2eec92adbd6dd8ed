"""Indices that come from outside as int64: converted once where the NPU has GATHER, left to the CPU where it has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, EthosUPartitioner, runtime
from ethorch.lower.fx.node import op_name
from tests.helpers.networks import TARGETS, checked
from tests.helpers.quantized import lower, quantized


class Rows(nn.Module):
    def forward(self, x: Tensor, chosen: Tensor) -> tuple[Tensor, ...]:
        x = torch.tanh(x)
        return x[:, chosen], torch.index_select(x, 0, chosen), torch.gather(x, 1, chosen.expand(4, 3))


class Flags(nn.Module):
    def forward(self, flags: Tensor, chosen: Tensor) -> Tensor:
        return torch.gather(flags, 1, chosen)


X, CHOSEN = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 0, 2])


@pytest.mark.parametrize(("target", "npu"), [("ethos-u85-256", 4), ("ethos-u55-128", 1)])
def test_int64_numbers_of_rows(target: str, npu: int) -> None:
    spec = EthosUCompileSpec(target)
    module = quantized(Rows(), [(X, CHOSEN)], target=spec).module
    partitioner = EthosUPartitioner(spec)
    program = runtime.load(lower(module, (X, CHOSEN), partitioner))
    assert partitioner.report.npu_operators >= npu
    cpu = {(refusal.origin.target, refusal.reason.id) for refusal in partitioner.report.refusals}
    if npu == 4:
        assert cpu == set()  # but for a cast of the input, once for all that read it
    else:
        assert ("aten.gather.default", "GATHER.absent") in cpu
    for found, wanted in zip(program(X, CHOSEN), module(X, CHOSEN), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_truth_values_are_gathered() -> None:
    spec, numbers = EthosUCompileSpec("ethos-u85-256"), torch.tensor([[1, 0], [4, 4], [2, 3], [0, 0]])
    module = quantized(Flags(), [(X > 0, numbers)], target=spec).module
    assert any(op_name(node.target).startswith("aten.to") for node in module.graph.nodes)
    partitioner = EthosUPartitioner(spec)
    program = runtime.load(lower(module, (X > 0, numbers), partitioner))
    assert partitioner.report.npu_operators == 1
    torch.testing.assert_close(program(X > 0, numbers)[0], Flags()(X > 0, numbers))


class PooledText(nn.Module):
    """CLIP's: the state at the end of the text, whose token has the largest number."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(0)
        self.dtype = dtype
        self.tokens, self.last = nn.Embedding(50, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.tokens(ids).relu()
        return self.last(states[torch.arange(states.shape[0]), ids.to(self.dtype).argmax(-1)])


@pytest.mark.parametrize("dtype", [torch.int32, pytest.param(torch.int64, marks=pytest.mark.long)])
@pytest.mark.parametrize("target", TARGETS)
def test_an_index_that_is_computed_of_token_ids(target: str, dtype: torch.dtype) -> None:
    ids = torch.randint(0, 49, (3, 7), generator=torch.Generator().manual_seed(0))
    ids[range(3), [4, 6, 4]] = 49
    ids[0, 5] = 49  # the first of several counts
    built = checked(PooledText(dtype), [(ids,), (ids.flip(1),)], target)
    reasons = {(refusal.origin.target, refusal.reason.id) for refusal in built.partition.refusals}
    if target == "ethos-u85-256":
        assert len(built.delegates) == 1
        assert reasons == set()
    else:
        assert {("aten.embedding.default", "GATHER.absent"), ("aten.index.Tensor", "GATHER.absent")} <= reasons


class Pairs(nn.Module):
    def forward(self, x: Tensor, i: Tensor, j: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        rows = torch.arange(4)
        return x[i, j], x[rows, j], torch.index_put(x, [i, j], v)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_merged_indices_count_from_the_end_once(dtype: torch.dtype) -> None:
    x, v = torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(1)).unbind(0)
    i, j = (torch.tensor(numbers, dtype=dtype) for numbers in ([0, -1, 2, -3], [-5, 4, -1, 0]))
    built = checked(Pairs(), [(x, i, j, v[:, 0]), (x, i.flip(0), j.flip(0), v[:, 1])], "ethos-u85-256")
    (delegate,) = built.delegates
    # Two computed indices are read, one is read after a constant index, and the second of those written is merged with the first.
    names = [op.name for op in delegate.source.ops]
    assert (names.count("SELECT"), names.count("MINIMUM")) == (0, 5)

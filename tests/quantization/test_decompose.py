"""Operators without an entry of their own become, by PyTorch's decompositions, operators that have one."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ethorch import sqnr_db
from ethorch.support.errors import QuantizationError
from tests.helpers import ladder
from tests.helpers.quantized import Function, exported, quantized, quantizer, samples

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "multiply": lambda x: torch.multiply(x, torch.absolute(torch.negative(x))),
    "less": lambda x: torch.where(torch.less(x, 0.5), x, torch.subtract(x, 1)),
    "var_mean": lambda x: torch.subtract(*torch.var_mean(x, -1)),
    "std_mean": lambda x: torch.std_mean(x, -1, keepdim=True)[0] * x,
    "stacks": lambda x: torch.hstack([torch.vstack([x, x]), torch.vstack([x, -x])]),
    "tensordot": lambda x: torch.tensordot(x, x, ([2], [2])),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "diff": lambda x: torch.diff(x, dim=-1).view_as(x[..., 1:]),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "broadcast": lambda x: torch.stack(torch.broadcast_tensors(x, x[:1])),
    "broadcast of one shape": lambda x: torch.stack(torch.broadcast_tensors(x, x.flip(0))),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="ij")[1] * 2,
    "pairwise_distance": lambda x: F.pairwise_distance(x, x.flip(0)),
    "outer": lambda x: torch.outer(x[0, 0], x[0, 1]) + torch.inner(x[0, 0], x[0, 1]),
    "kron": lambda x: torch.kron(x[0], x[1]),
    "trapezoid": lambda x: torch.trapezoid(x, dim=-1),
    "rot90": lambda x: torch.rot90(x, 1, (1, 2)),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 3:6]),
    "arctan": lambda x: torch.arctan(x),
    "one_hot": lambda x: F.one_hot(x.argmax(-1), 8) * x,
    "block_diag": lambda x: torch.block_diag(x[0], x[1]),
}
QUICK = {"multiply", "broadcast of one shape", "less", "std_mean", "stacks", "tensordot", "lerp", "diff", "one_hot"}


class Behind(nn.Module):
    """A function of what a layer computes."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize("target", ["ethos-u55-128", pytest.param("ethos-u85-256", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.long) for x in FUNCTIONS])
def test_nothing_stays_on_the_cpu(name: str, target: str) -> None:
    model, calibration = Behind(FUNCTIONS[name]).eval(), samples((2, 3, 8))
    q = quantized(model, calibration, target=target)
    assert ladder.refusal_ids(q.converted, target) == set()
    with torch.no_grad():  # the median: a value beside the step of "less" may fall to its other side
        assert median(sqnr_db(model(*inputs), q.module(*inputs)) for inputs in calibration) > 16


@pytest.mark.long
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_layer_computes_the_same(name: str, target: str) -> None:
    calibration = samples((2, 3, 8))
    ladder.climb(quantized(Behind(FUNCTIONS[name]), calibration, target=target), calibration[0], target, tolerance=3)


def test_what_would_be_unknown_in_part_stays_whole() -> None:
    """``float_power`` computes in float64, which nothing else here does; topk's parts have no entry either."""
    x = torch.rand(2, 8) + 1
    for function in (lambda x: torch.float_power(x, 2.0), lambda x: torch.topk(x, 2).values):
        model = Behind(function)
        graph = quantizer().transform_for_annotation(exported(model, (x,)))
        assert any("float_power" in str(node.target) or "topk" in str(node.target) for node in graph.graph.nodes)


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "slice of all": lambda x: x[:, :8],
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_at_the_end_leaves_nothing_in_float(name: str) -> None:
    q = quantized(Behind(COPIES[name]), samples((2, 8)))
    assert ladder.refusal_ids(q.converted, "ethos-u55-128") == set()


@pytest.mark.parametrize("function", [lambda x: F.normalize(x, dim=1), lambda x: x.sum(-1, keepdim=True).expand_as(x)])
def test_an_input_that_only_gives_a_shape_is_not_read(function: Callable[[Tensor], Tensor]) -> None:
    q = quantized(Function(function), samples((2, 8)))
    assert ladder.refusal_ids(q.converted, "ethos-u55-128") == set()


class ViewedAttention(nn.Module):
    """Attention whose result PyTorch lays out by positions, which ``view`` relies on."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.reshape(1, 6, 2, 4).transpose(1, 2) for part in torch.sin(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).view(1, 6, -1)


def test_a_view_behind_what_is_laid_out_otherwise_is_a_reshape() -> None:
    q = quantized(ViewedAttention(), samples((1, 6, 24)))  # calibrates
    assert ladder.refusal_ids(q.converted, "ethos-u55-128") == set()


class Chosen(nn.Module):
    """The places of what is positive, of which there may be any number, halved or written to."""

    def __init__(self, writes: bool):
        super().__init__()
        self.writes = writes

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = x.masked_select(x > 0)
        if self.writes:
            found[:1] = 0.5
            return (found,)
        return found.split([found.shape[0] // 2, found.shape[0] - found.shape[0] // 2])


def test_shapes_that_depend_on_values_are_left_alone_or_named() -> None:
    graph = quantizer().transform_for_annotation(exported(Chosen(writes=False), (torch.ones(2, 6),)))
    assert any("split" in str(node.target) for node in graph.graph.nodes)
    with pytest.raises(QuantizationError, match=r"masked_select.*data-dependent.*\[quantize\.shape_of_values\]"):
        quantizer().transform_for_annotation(exported(Chosen(writes=True), (torch.ones(2, 6),)))


class NormalizedInFloat(nn.Module):
    """As Hugging Face writes an RMS norm: computed in float32, given back in the dtype of what came in."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(x) * 3.0
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.type_as(x).to(x.device) + x


def test_casts_that_do_nothing_go() -> None:
    inputs = samples((2, 6, 8))
    graph = quantized(NormalizedInFloat(), inputs).module.graph
    assert not [node.name for node in graph.nodes if "aten.to." in str(node.target) or "type_as" in str(node.target)]
    q = quantized(NormalizedInFloat(), inputs)
    assert ladder.refusal_ids(q.converted, "ethos-u55-128") == set()

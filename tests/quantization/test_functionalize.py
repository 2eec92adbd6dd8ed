"""In-place operators, also through views of views: the graph computes what the module computes, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import ethorch
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.functionalize import functionalize
from ethorch.quantization.selection import module_path
from ethorch.support.errors import QuantizationError


def functionalized(graph: GraphModule) -> GraphModule:
    """Run the pass in place; return the graph, which can be called."""
    functionalize(graph, PassContext())
    graph.recompile()
    return graph


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], object]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def add_to_slice(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :4] += 1
    return y


def relu_of_view(x: Tensor) -> Tensor:
    y = x * 2
    y.view(2, 2, 8)[:, 1].relu_()
    return y + 1


def clamp_of_transposed(x: Tensor) -> Tensor:
    y = x + 0.5
    y.transpose(0, 1)[2:5].clamp_(-0.2, 0.3)
    return y


def transposed_written_flat_read(x: Tensor) -> Tensor:
    y = x + 0.5
    y.transpose(0, 1)[2:5].clamp_(-0.2, 0.3)
    return y.view(-1) * y[0].view(-1)[0]


def base_written_view_read(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    view = y[0]
    y.mul_(3)
    before = view + 0
    y[0, 3] = 7.0
    return view, before


def two_views_of_one(x: Tensor) -> Tensor:
    y = x.clone()
    left, right = y[:, :8], y[:, 8:]
    left.copy_(right)
    right.mul_(2)
    left.add_(right)
    return y


def split_and_unbind(x: Tensor) -> Tensor:
    y = x * 1.5
    first, second = y.split(8, 1)
    second.sub_(first)
    row = y.unbind(0)[1]
    row.neg_()
    return torch.cat([y, first, second], 1)


def chunk_read_after_write(x: Tensor) -> Tensor:
    y = x * 1.5
    parts = y.chunk(2, 1)
    y.add_(1)
    return parts[0] * parts[1]


def copied_value_is_not_shared(x: Tensor) -> tuple[Tensor, Tensor]:
    source = x[0] * 2
    y = torch.zeros(2, 16)
    y[1].copy_(source)
    y.add_(1)
    return y, source


def strided(x: Tensor) -> Tensor:
    y = x + 0
    y[:, ::3] = 0
    y[1:, 1::2] *= -1
    return y


def indexed(x: Tensor) -> Tensor:
    y = x + 0
    y[:, torch.tensor([1, 3])] = 5.0
    y[y > 1] = 1.0
    return y.masked_fill_(y < -1, -1.0)


def broadcast_and_cast(x: Tensor) -> Tensor:
    y = x + 0
    y[0] = torch.arange(16)
    y[:, 2:4] = x[:, :1]
    return y


def diagonal(x: Tensor) -> Tensor:
    y = x + 0
    y.diagonal().fill_(9.0)
    return y


def unsqueezed_in_place(x: Tensor) -> Tensor:
    y = x + 0
    y.unsqueeze_(0)
    y[0, 1] += 2
    return y.transpose_(1, 2) * 2


def lists_of_views_that_are_read(x: Tensor) -> Tensor:
    """Of constants, of what is written before and after they are taken, and of several tensors."""
    rows, columns = torch.meshgrid(torch.arange(2.0), torch.arange(16.0), indexing="ij")
    y, z = x[0] * 2, x[:, 3] + 1
    y[:4] = 1
    left, right = torch.meshgrid(z, y, indexing="ij")
    y.add_(1)
    upper, lower = (x + y).hsplit(2)
    z.mul_(2)
    a, b = torch.broadcast_tensors(y, torch.ones(2, 1))
    y.sub_(3)
    return torch.cat([left * right + rows * columns, upper, lower, a * b], 1)


def eval_dropout_is_a_view(x: Tensor) -> Tensor:
    y = x + 0
    z = nn.functional.dropout(y, 0.5, training=False)
    z.add_(1)
    return y.flatten().reshape(4, 8).contiguous().mul_(2) + z.reshape(4, 8)


def chain_without_views(x: Tensor) -> Tensor:
    y = x + 0
    y.relu_().add_(1).mul_(y)
    return nn.functional.hardtanh_(y, -1, 1.5)


def floor_divided(x: Tensor) -> Tensor:
    """The in-place form has another name for its overload than the functional one."""
    y = x * 2
    y //= 0.5
    return y


def raised_to_a_power(x: Tensor) -> Tensor:
    """The functional operator of the in-place form's name raises a number to a tensor."""
    y = x.abs() + 1
    y.pow_(-0.5)
    return y


def dropped_out_in_place(x: Tensor) -> Tensor:
    """The arguments of both forms differ in their names."""
    return nn.functional.dropout(x * 2, 0.5, training=False, inplace=True) + 1


FUNCTIONS = [
    add_to_slice, relu_of_view, clamp_of_transposed, transposed_written_flat_read,
    base_written_view_read, two_views_of_one, split_and_unbind,
    chunk_read_after_write, copied_value_is_not_shared, strided, indexed, broadcast_and_cast, diagonal, unsqueezed_in_place,
    lists_of_views_that_are_read, eval_dropout_is_a_view, chain_without_views, floor_divided,
    raised_to_a_power, dropped_out_in_place,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_same_values_and_no_writes(function: Callable[[Tensor], object]) -> None:
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(1)) * 2
    graph = functionalized(torch.export.export(Lambda(function), (x.clone(),)).module(check_guards=False))
    assert [n for n in graph.graph.nodes if getattr(getattr(n.target, "_schema", None), "is_mutable", False)] == []
    torch.testing.assert_close(graph(x.clone()), function(x.clone()), rtol=0, atol=0)
    assert all("val" in n.meta for n in graph.graph.nodes if n.op == "call_function")
    torch.export.export(graph, (x,))


class State(nn.Module):
    """A streaming model: the last three inputs are kept in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.last[:-1] = self.last[1:].clone()
        self.last[-1].copy_(x)
        return self.last.mean(0)


def test_state_is_kept() -> None:
    module, x = State(), torch.randn(4)
    graph = functionalized(torch.export.export(State(), (x,)).module(check_guards=False))
    for step in range(4):
        torch.testing.assert_close(graph(x + step), module(x + step))
    torch.testing.assert_close(graph.last, module.last)
    (write,) = [n for n in graph.graph.nodes if "copy_" in str(n.target)]
    assert write.args[0].op == "get_attr"


def test_the_clone_of_a_buffer_is_in_the_module_of_its_readers() -> None:
    x = torch.randn(4)
    graph = functionalized(torch.export.export(nn.Sequential(nn.Identity(), State()), (x,)).module(check_guards=False))
    clone = next(n for n in graph.graph.nodes if n.target is torch.ops.aten.clone.default)
    assert clone.all_input_nodes[0].op == "get_attr" and module_path(clone)[-1][0] == "1"


def test_an_input_that_the_model_writes_is_left_alone() -> None:
    def forward(x: Tensor) -> Tensor:
        x[:, 0] = 1
        return x * 2

    x = torch.randn(2, 16)
    graph = functionalized(torch.export.export(Lambda(forward), (x.clone(),)).module(check_guards=False))
    ours = x.clone()
    torch.testing.assert_close(graph(ours), forward(x.clone()))
    torch.testing.assert_close(ours, x)


def test_metadata_names_and_parameters_stay() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)
            self.act = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.conv(x))
            y[:, :1] += 1
            return y

    x = torch.randn(1, 2, 8, 8)
    before = torch.export.export(Model(), (x,)).module(check_guards=False)
    names = {n.name for n in before.graph.nodes if n.op != "call_function" or "relu" in n.name or "conv" in n.name}
    after = functionalized(before)
    assert names <= {n.name for n in after.graph.nodes}
    assert {name for name, _ in after.named_parameters()} == {"conv.weight", "conv.bias"}
    assert all(n.meta.get("stack_trace") for n in after.graph.nodes if n.op == "call_function")
    relu = next(n for n in after.graph.nodes if n.target is torch.ops.aten.relu.default)
    assert any(path == "act" for path, _ in relu.meta["nn_module_stack"].values())


def into_windows(x: Tensor) -> Tensor:
    y = x + 0
    y.unfold(1, 4, 4).add_(1)
    return y


def into_one_of_several(x: Tensor) -> Tensor:
    y = x + 0
    y.hsplit(2)[0].add_(1)
    return y


@pytest.mark.parametrize(("function", "view"), [(into_windows, "unfold"), (into_one_of_several, "hsplit")])
def test_what_cannot_be_written_back_is_refused_by_name(function: Callable[[Tensor], Tensor], view: str) -> None:
    graph = torch.export.export(Lambda(function), (torch.randn(2, 16),)).module(check_guards=False)
    with pytest.raises(QuantizationError, match=rf"add_.*{view}.*Use a functional operator.*\[quantize\.in_place\]"):
        functionalized(graph)


def test_a_graph_without_writes_is_left_alone() -> None:
    graph = torch.export.export(Lambda(lambda x: x.relu() + 1), (torch.randn(2, 16),)).module(check_guards=False)
    before = str(graph.graph)
    functionalized(graph)
    assert str(graph.graph) == before


class CutByMask(nn.Module):
    """A slice whose end is computed, next to an operator that writes in place."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = x[:, : mask.sum()] * 2
        y[:, 0] = 1
        return y


def test_a_slice_of_a_computed_length_is_refused_in_a_sentence() -> None:
    inputs = (torch.randn(2, 6), torch.tensor([1, 1, 1, 0, 0, 0]))
    with pytest.raises(QuantizationError, match=r"quantize\.shape_of_values"):
        ethorch.compile(CutByMask(), inputs, "ethos-u85-256")

"""What a node says of itself."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from ethorch.lower.fx.node import (
    arguments,
    as_array,
    as_tensor,
    attribute,
    first_value,
    is_float,
    is_integer,
    makes_constant,
    op_name,
    tensor_of,
)

pytestmark = pytest.mark.core

aten = torch.ops.aten


def exported(module: torch.nn.Module, *inputs: torch.Tensor) -> GraphModule:
    return torch.export.export(module, inputs).module(check_guards=False)


def test_an_operator_is_named_as_its_functional_form() -> None:
    assert op_name(aten.relu_.default) == op_name(aten.relu.default) == "aten.relu.default"
    assert op_name(aten.__and__.Tensor) == "aten.__and__.Tensor"


def test_arguments_are_in_the_order_of_the_schema_with_defaults() -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    assert arguments(graph.call_function(aten.add.Tensor, (x, y))) == ((x, y), {"alpha": 1})
    assert arguments(graph.call_function(aten.mean.dim, (x, [1]), {"keepdim": True})) == ((x, [1], True), {})  # dtype is left out
    given = graph.call_function(aten.mean.dim, (x, [1]), {"dtype": None})
    assert arguments(given) == ((x, [1], False), {"dtype": None})


def test_a_get_attr_node_stands_for_what_its_dotted_name_is() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(3, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model = exported(Model(), torch.zeros(1, 3))
    (weight,) = [node for node in model.graph.nodes if node.op == "get_attr" and str(node.target).endswith("weight")]
    assert tensor_of(model, weight) is attribute(model, "inner.0.weight")
    assert attribute(model, "inner.1.weight") is None
    assert all(tensor_of(model, node) is None for node in model.graph.nodes if node.op != "get_attr")


def test_the_first_of_several_results_decides_what_a_node_is() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (*torch.max(x, 1), torch.argmax(x, 1))

    graph = exported(Model(), torch.zeros(2, 3)).graph

    def call(target: torch._ops.OpOverload) -> Node:
        return next(node for node in graph.nodes if node.target is target)

    largest, index = call(aten.max.dim), call(aten.argmax.default)
    assert is_float(largest) and not is_integer(largest)
    assert is_integer(index) and not is_float(index)
    assert first_value(largest).shape == first_value(index).shape == (2,)  # type: ignore[union-attr]
    assert first_value(graph.output_node()) is None


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (lambda x: torch.zeros_like(x), True),
        (lambda x: torch.arange(3), True),
        (lambda x: torch.rand(3), False),
        (lambda x: x + 1, False),
    ],
)
def test_what_depends_on_no_input_is_a_constant(function, constant: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    calls = [node for node in exported(Model(), torch.zeros(2)).graph.nodes if node.op == "call_function"]
    assert [makes_constant(node) for node in calls] == [constant]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_a_tensor_survives_being_an_array(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 3]).to(dtype)
    array = as_array(tensor)
    assert torch.equal(as_tensor(array), tensor)
    assert as_tensor(array).data_ptr() != tensor.data_ptr()

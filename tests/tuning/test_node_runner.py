"""Graphs run node by node compute what they compute as a whole, and hooks replace and observe values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.lower.fx import export
from ethorch.tuning.node_runner import NodeRunner, Values
from tests.tuning.networks import Stateful

pytestmark = pytest.mark.core


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, pair: list[Tensor]) -> Any:
        y = torch.relu(self.first(x))
        return self.last(y + pair[0] * pair[1])


SAMPLES: list[tuple[Any, ...]] = [(torch.rand(3, 4), [torch.rand(3, 4), torch.rand(3, 4)]) for _ in range(3)]


def graph_of(model: nn.Module, inputs: tuple[Any, ...]) -> GraphModule:
    found = export.export_module(model.eval(), inputs).module(check_guards=False)
    assert isinstance(found, GraphModule)
    return found


def outputs(runner: NodeRunner) -> list[Any]:
    """The first output of the runner's graph for each sample."""
    (result,) = next(node for node in runner.graph.graph.nodes if node.op == "output").all_input_nodes
    for _ in runner:
        pass
    return runner.values[result]


def test_all_samples_have_the_values_of_the_whole_graph() -> None:
    graph = graph_of(Branches(), SAMPLES[0])
    runner = NodeRunner(graph, SAMPLES)
    assert all(torch.equal(a, graph(*sample)) for a, sample in zip(outputs(runner), SAMPLES, strict=True))
    assert len(runner.values) == 1, "values that have no reader left are released"


def test_arguments_are_there_before_a_node_and_its_value_is_not() -> None:
    runner = NodeRunner(graph_of(Branches(), SAMPLES[0]), SAMPLES)
    for node in runner:
        assert node not in runner.values
        assert all(arg in runner.values for arg in node.all_input_nodes)


def test_values_are_replaced_by_a_hook_and_by_the_loop() -> None:
    graph = graph_of(Branches(), SAMPLES[0])

    def pass_relu(node: Node, values: Values) -> list[Any] | None:
        return values[node.all_input_nodes[0]] if node.name == "relu" else None

    def expected(sample: tuple[Any, ...]) -> Any:
        model = Branches()
        x, (a, b) = sample
        return model.last(model.first(x) + a * b)

    wanted = [expected(sample) for sample in SAMPLES]
    assert all(map(torch.allclose, outputs(NodeRunner(graph, SAMPLES, replace=pass_relu)), wanted))
    runner = NodeRunner(graph, SAMPLES)
    for node in runner:
        if node.name == "relu":
            assert torch.equal(runner.run_node(node)[0], torch.relu(runner.values[node.all_input_nodes[0]][0]))
            runner.values[node] = runner.values[node.all_input_nodes[0]]
    assert all(map(torch.allclose, next(iter(runner.values.values())), wanted))


def test_a_parameter_changed_before_its_layer_counts() -> None:
    graph = graph_of(Branches(), SAMPLES[0])
    runner = NodeRunner(graph, SAMPLES)
    with torch.no_grad():
        for node in runner:
            if node.name == "linear_1":
                graph.get_parameter("last.bias").add_(1.0)
    assert torch.equal(next(iter(runner.values.values()))[0], graph(*SAMPLES[0]))


def test_buffers_are_written_only_if_asked_for() -> None:
    graph, sample = graph_of(Stateful(), (torch.rand(1, 4),)), (torch.rand(1, 4),)
    state = graph.get_buffer("state")
    before = state.clone()
    outputs(NodeRunner(graph, [sample, sample]))
    assert torch.equal(state, before)
    outputs(NodeRunner(graph, [sample], write_back=True))
    assert not torch.equal(state, before)
    with pytest.raises(AssertionError):
        NodeRunner(graph, [sample, sample], write_back=True)

"""The table of graph passes: its names, and the order that the passes declare."""

from __future__ import annotations

import inspect

import pytest
from torch.fx import Graph, GraphModule

from ethorch.quantization.passes import pipeline
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.pipeline import PASSES, Pass, run_passes

pytestmark = pytest.mark.core


def violations(passes: tuple[Pass, ...]) -> list[str]:
    """Return what a pass declares and the order does not keep."""
    places = {each.name: number for number, each in enumerate(passes)}
    found = []
    for each in passes:
        for other in each.after + each.before:
            if other not in places:
                found.append(f"{each.name} names {other}, which is no pass")
        found += [f"{each.name} runs before {other}" for other in each.after if places.get(other, -1) >= places[each.name]]
        found += [f"{each.name} runs after {other}" for other in each.before if 0 <= places.get(other, -1) <= places[each.name]]
    return found


def test_the_order_is_the_declared_one() -> None:
    assert not violations(PASSES)


@pytest.mark.parametrize("name", [each.name for each in PASSES if each.after or each.before])
def test_a_pass_at_the_wrong_end_is_noticed(name: str) -> None:
    (moved,) = [each for each in PASSES if each.name == name]
    others = tuple(each for each in PASSES if each.name != name)
    assert violations((moved, *others)) or violations((*others, moved))


def test_all_passes_have_one_signature_and_their_functions_names() -> None:
    assert len({each.name for each in PASSES}) == len(PASSES)
    for each in PASSES:
        assert list(inspect.signature(each.run).parameters) == ["graph_module", "context"], each.name
        assert each.name.startswith(each.run.__name__), each.name


def test_passes_of_training_run_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def record(graph_module: GraphModule, context: PassContext) -> None:
        ran.append("trainable" if context.trainable else "fixed")

    passes = (Pass("both", record), Pass("in_training", record, only="trainable"), Pass("fixed", record, only="fixed"))
    monkeypatch.setattr(pipeline, "PASSES", passes)
    graph = GraphModule({}, Graph())
    graph.graph.output(())
    run_passes(graph, PassContext(trainable=True))
    run_passes(graph, PassContext(trainable=False))
    assert ran == ["trainable"] * 2 + ["fixed"] * 2

"""Debug records: plain data of a graph, events, and locations in the flatbuffer."""

from __future__ import annotations

import json

from ethorch.tosa import debug
from ethorch.tosa.ir import Graph, Op, Origin, Value
from ethorch.tosa.serialize import serialize

ORIGIN = Origin("relu", "aten.relu.default", "stem", "net.py:7")


def graph() -> Graph:
    x, y = Value("x", (1, 4), "INT8"), Value("y", (1, 4), "INT8", ORIGIN)
    return Graph(inputs=[x], outputs=[y], ops=[Op("CLAMP", (x,), {"min_val": 0, "max_val": 9}, (y,))])


def test_events_name_the_operator_and_its_place() -> None:
    (event,) = debug.events(graph(), start=3)
    assert event["event_id"] == 3
    assert event["aten_info"] == {"node_name": "relu", "operator_name": "aten.relu.default"}
    assert event["tosa_info"] == {"node_name": "y", "operator_name": "CLAMP"}
    assert event["torch_info"] == {"stack_trace": ["net.py:7"], "nn_module_stack": "stem"}


def test_plain_data_is_nested_like_a_flatbuffer() -> None:
    (region,) = debug.as_data(graph())["regions"]
    (block,) = region["blocks"]
    assert region["name"] == "main" and block["inputs"] == ["x"] and block["outputs"] == ["y"]
    assert block["tensors"] == [{"name": name, "shape": [1, 4], "type": "INT8"} for name in "xy"]
    assert block["operators"] == [{"op": "CLAMP", "inputs": ["x"], "outputs": ["y"], "attributes": {"min_val": 0, "max_val": 9}}]


def test_locations_are_written_only_on_request() -> None:
    text = json.dumps(debug.event_of(graph().ops[0], 0)).encode()
    assert text in serialize(graph(), locations=True)
    assert b"event_id" not in serialize(graph())

"""What Model Explorer is given of a program: nodes, groups, figures, edges; by the extension and as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.figures import layers
from ethorch.figures.dataflow import Dataflow, dataflow
from ethorch.figures.subject import subject
from ethorch.program.explorer import graphs
from ethorch.program.program import Program, record_of
from tests.figures.programs import built


class Residual(nn.Module):
    """Two convolutions and what came in, joined along the channels and added up; a topk on the CPU between two delegates."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.other, self.head = nn.Conv2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.block(x), torch.sigmoid(self.other(x))], 1)
        return self.head(torch.topk(x.mean((2, 3)), 4).values)


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    return ethorch.compile(Residual(), torch.randn(1, 4, 8, 8), "ethos-u55-128")


@pytest.fixture(scope="module")
def folder(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program.save(tmp_path_factory.mktemp("explorer") / "saved")


def reachable(graph: dict[str, Any], start: str) -> set[str]:
    """All that flows out of a node, by the edges."""
    readers: dict[str, list[str]] = {}
    for node in graph["nodes"]:
        for edge in node["incomingEdges"]:
            readers.setdefault(edge["sourceNodeId"], []).append(node["id"])
    found, edge_of = set(), [start]
    while edge_of:
        for reader in readers.get(edge_of.pop(), []):
            if reader not in found:
                found.add(reader)
                edge_of.append(reader)
    return found


def attributes(node: dict[str, Any]) -> dict[str, str]:
    return {attr["key"]: attr["value"] for attr in node["attrs"]}


def nodes_of(graph: dict[str, Any], **wanted: str) -> Iterator[dict[str, Any]]:
    yield from (node for node in graph["nodes"] if all(node[key] == value for key, value in wanted.items()))


def test_a_programs_graph_is_whole(program: Program) -> None:
    graph = graphs.program_graph(program)
    ids = [node["id"] for node in graph["nodes"]]
    assert len(ids) == len(set(ids)) and ids[0] == "input 0" and ids[-1] == "output 0"
    assert all(edge["sourceNodeId"] in ids for node in graph["nodes"] for edge in node["incomingEdges"])
    assert reachable(graph, "input 0") == set(ids[1:]), "every node is on the way from input to output"
    cpu = [node for node in graph["nodes"] if attributes(node).get("runs on") == "CPU"]
    assert any("topk" in node["label"] for node in cpu) and all(node["style"]["backgroundColor"] for node in cpu)


def test_operations_have_module_line_and_figures(program: Program) -> None:
    graph = graphs.program_graph(program)
    (head,) = nodes_of(graph, namespace="head")
    found = attributes(head)
    assert head["label"] == "linear.default" and found["source"].startswith("test_explorer.py:")
    assert int(found["cycles"]) > 0 and found["runs on"] == "NPU, delegate 1" and int(found["MACs"]) == 12
    assert {node["namespace"] for node in graph["nodes"]} >= {"block/0", "other", "head"}
    total = sum(int(attributes(node)["cycles"]) for node in graph["nodes"] if attributes(node).get("runs on", "").startswith("NPU"))
    assert total == sum(layer.cycles or 0 for layer in record_of(program).layers if layer.where == "NPU")


def test_a_bare_file_is_drawn_by_its_commands(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "bare.pte")
    (graph,) = graphs.graphs(tmp_path / "bare.pte")
    assert [node["label"] for node in graph["nodes"]].count("CONV WEIGHTS") >= 2
    assert all("cycles" not in attributes(node) for node in graph["nodes"] if attributes(node).get("runs on", "").startswith("NPU"))
    assert reachable(graph, "input 0") >= {"output 0"}


def test_a_saved_folder_has_tosa_graphs_too(program: Program, folder: Path) -> None:
    assert graphs.graphs(folder) == graphs.graphs(folder / "model.pte")
    first, *tosa = graphs.graphs(folder)
    assert first == graphs.program_graph(program)
    assert [graph["id"] for graph in tosa] == ["TOSA of delegate 0", "TOSA of delegate 1"]
    for graph in tosa:
        ids = [node["id"] for node in graph["nodes"]]
        assert all(edge["sourceNodeId"] in ids for node in graph["nodes"] for edge in node["incomingEdges"])
    convolutions = list(nodes_of(tosa[0], label="CONV2D"))
    assert {node["namespace"] for node in convolutions} >= {"block/0", "other"}
    (conv,) = [node for node in convolutions if node["namespace"] == "block/0"]
    assert attributes(conv)["PyTorch operator"] == "aten.conv2d.default"
    assert "INT32[1, 8, 8, 4]" in [a["value"] for a in conv["outputsMetadata"][0]["attrs"]]


def test_the_extension_converts(folder: Path) -> None:
    from ethorch.program.explorer.main import ExecuTorchProgramAdapter

    adapter = ExecuTorchProgramAdapter()
    found = adapter.convert(str(folder / "model.pte"), {})["graphs"]
    assert adapter.metadata.fileExts == ["pte"]
    plain = graphs.graphs(folder)
    assert [graph.id for graph in found] == [graph["id"] for graph in plain]
    for graph, data in zip(found, plain, strict=True):
        assert [(node.id, node.label, node.namespace) for node in graph.nodes] == [
            (node["id"], node["label"], node["namespace"]) for node in data["nodes"]
        ]
        assert [[edge.sourceNodeId for edge in node.incomingEdges] for node in graph.nodes] == [
            [edge["sourceNodeId"] for edge in node["incomingEdges"]] for node in data["nodes"]
        ]


def test_model_explorer_finds_the_extension_and_runs_it(folder: Path) -> None:
    """As ``model-explorer --extensions=ethorch.program.explorer`` does it, without a browser."""
    from model_explorer import extension_manager

    manager = extension_manager.ExtensionManager(["ethorch.program.explorer"])
    manager.custom_extension_modules = ["ethorch.program.explorer.main"]
    manager.load_extensions()
    assert "ethorch-pte" in [extension["id"] for extension in manager.get_extensions_metadata()]
    command = {"cmdId": "convert", "extensionId": "ethorch-pte", "modelPath": str(folder / "model.pte"), "settings": {}}
    answer = manager.run_cmd({**command, "deleteAfterConversion": False})
    assert len(json.loads(json.dumps(answer))["graphs"]) == 3


def test_graphs_and_figures_as_files(program: Program, tmp_path: Path) -> None:
    found = json.loads(graphs.save(program, tmp_path / "graph.json").read_text())
    assert [graph["id"] for graph in found] == ["forward for ethos-u55-128", "TOSA of delegate 0", "TOSA of delegate 1"]
    data = graphs.node_data(program)
    ids = {node["id"] for node in found[0]["nodes"]}
    results = data["cycles"]["forward for ethos-u55-128"]["results"]
    assert results and set(results) <= ids and max(result["value"] for result in results.values()) > 0
    written = graphs.save_node_data(program, tmp_path)
    assert [path.name for path in written] == ["cycles.json", "bytes.json"] and json.loads(written[0].read_text()) == data["cycles"]


def test_the_layers_are_those_of_the_figures(program: Program) -> None:
    flow = dataflow(subject(program.pte))
    assert flow.layers == layers(program.pte) and flow.inputs == ("input 0",)
    assert all(int(a) < int(b) for a, b in flow.edges if a.isdigit() and b.isdigit()), "nobody reads what comes later"


@pytest.mark.parametrize("name", ["picture_u65_dedicated_sram", "branches", pytest.param("small_gru", marks=pytest.mark.long)])
def test_everything_flows_from_the_inputs(name: str) -> None:
    """Staging memory, branches whose results the runtime moves, and many small operations."""
    flow = dataflow(subject(built(name).pte))
    nodes = [{"id": end, "incomingEdges": [{"sourceNodeId": a} for a, b in flow.edges if b == end]} for end in _ends(flow)]
    found = set().union(*(reachable({"nodes": nodes}, start) for start in flow.inputs))
    assert found == {*(str(layer.index) for layer in flow.layers), *flow.outputs}


def _ends(flow: Dataflow) -> list[str]:
    return [*flow.inputs, *(str(layer.index) for layer in flow.layers), *flow.outputs]


def test_a_layer_of_a_chain_reads_the_layer_before_it_alone() -> None:
    """Also where memory that one layer wrote is covered by another's map with gaps between its bricks."""
    torch.manual_seed(0)
    blocks = [nn.Conv2d(1, 24, (10, 4), 2, (5, 1)), nn.ReLU()]
    for _ in range(2):
        blocks += [nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.ReLU(), nn.Conv2d(24, 24, 1), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(24, 12)).eval()
    flow = dataflow(subject(ethorch.compile(model, torch.randn(1, 1, 49, 10), "ethos-u55-128").pte))
    place = dict.fromkeys(flow.inputs, 0)
    for end in _ends(flow):
        place.setdefault(end, 1 + max((place[a] for a, b in flow.edges if b == end), default=0))
    assert [(a, b) for a, b in flow.edges if place[b] != place[a] + 1] == []

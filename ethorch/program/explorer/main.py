"""The entry point of the Model Explorer extension."""

from __future__ import annotations

import dataclasses
from typing import Any

from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs, graph_builder

from ethorch.program.explorer.graphs import Data, graphs


class ExecuTorchProgramAdapter(Adapter):  # type: ignore[misc]  # Model Explorer has no types
    """An adapter that opens a ``.pte`` compiled by ethorch or by ExecuTorch's Arm backend."""

    metadata = AdapterMetadata(
        id="ethorch-pte",
        name="Ethos-U program (ethorch)",
        description="The NPU operations, CPU operators, estimated cycles and TOSA graphs of an ExecuTorch program.",
        source_repo="",
        fileExts=["pte"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> ModelExplorerGraphs:
        """Return the graphs of a file. See :func:`ethorch.program.explorer.graphs.graphs`."""
        return {"graphs": [_graph(data) for data in graphs(model_path)]}


def _graph(data: Data) -> Any:
    return graph_builder.Graph(id=data["id"], nodes=[_node(node) for node in data["nodes"]])


def _node(data: Data) -> Any:
    style = data.get("style")
    return graph_builder.GraphNode(
        id=data["id"],
        label=data["label"],
        namespace=data["namespace"],
        attrs=[graph_builder.KeyValue(**attr) for attr in data["attrs"]],
        incomingEdges=[graph_builder.IncomingEdge(**edge) for edge in data["incomingEdges"]],
        outputsMetadata=[
            graph_builder.MetadataItem(id=item["id"], attrs=[graph_builder.KeyValue(**attr) for attr in item["attrs"]])
            for item in data.get("outputsMetadata", [])
        ],
        style=None if style is None else dataclasses.replace(graph_builder.GraphNodeStyle(), **style),
    )

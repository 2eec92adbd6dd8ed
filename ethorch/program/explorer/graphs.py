"""Create the graphs of a program, and the TOSA graphs of its delegates, in Model Explorer's schema."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ethorch.figures.dataflow import dataflow
from ethorch.figures.layer import CPU, Layer
from ethorch.figures.subject import subject
from ethorch.formats.files import write_whole
from ethorch.program.program import Program, load, record_of

Data = dict[str, Any]

_CPU_COLOR, _HOT_COLOR = "#f6c9b8", "#f2d16b"
_HOT = 0.1  # minimum share of the cycles for which a node is colored
_OP = re.compile(r"^(?P<results>%.+?) = (?P<op>[A-Z0-9_]+) (?P<operands>[^{]*)\{(?P<attrs>.*?)\}(?:  # (?P<place>.*))?$")
_VALUE = re.compile(r"%([^\s:,]+): ([A-Z0-9]+\[[\d, ]*\])")
_PLACE = re.compile(r"^(?P<target>\S+?)(?: at (?P<module>[^\s(]+))?(?: \((?P<source>[^)]*)\))?$")


def graphs(path: str | os.PathLike[str]) -> list[Data]:
    """Return the graphs of a program.

    Args:
        path: A ``.pte``, or a folder written by ``Program.save``. If a ``.pte`` is not in such a folder, PyTorch operators,
            source lines, cycles and TOSA graphs are omitted.

    Raises:
        EthorchError: The file does not exist or is not a program.
    """
    file = Path(path)
    folder = file if file.is_dir() else file.parent
    dump = folder / "delegates"
    has_dump = dump.is_dir() and (file.is_dir() or file.name == "model.pte")
    program = load(folder if has_dump else file, sources=dump if has_dump else None)
    return [program_graph(program), *(tosa_graphs(dump) if has_dump else [])]


def save(program: Program, path: str | os.PathLike[str]) -> Path:
    """Write the graphs of a program to a JSON file, which Model Explorer opens without the extension.

    The file includes TOSA graphs if ``ethorch.compile`` returned the program.
    """
    documents = [program_graph(program)]
    for number, delegate in enumerate(() if (build := record_of(program).build) is None else build.delegates):
        documents.append(tosa_graph(delegate.text, f"TOSA of delegate {number}"))
    write_whole(path, json.dumps(documents).encode())
    return Path(path)


def program_graph(program: Program) -> Data:
    """Return the graph of a program. Nodes are inputs, outputs, NPU operations and CPU operators."""
    flow = dataflow(subject(program.pte, record_of(program).method, sources=record_of(program).command_sources))
    incoming: dict[str, list[str]] = {}
    for source, target in flow.edges:
        incoming.setdefault(target, []).append(source)
    nodes = [_end(name, incoming) for name in flow.inputs]
    nodes += [_layer(layer, incoming) for layer in flow.layers]
    nodes += [_end(name, incoming) for name in flow.outputs]
    target = f" for {program.target}" if program.target else ""
    return {"id": f"{record_of(program).method}{target}", "nodes": nodes}


def _end(name: str, incoming: dict[str, list[str]]) -> Data:
    return {"id": name, "label": name, "namespace": "", "attrs": [], "incomingEdges": _edges(incoming.get(name, []))}


def _edges(sources: list[str]) -> list[Data]:
    return [{"sourceNodeId": source, "targetNodeInputId": str(number)} for number, source in enumerate(sources)]


def _layer(layer: Layer, incoming: dict[str, list[str]]) -> Data:
    attrs: dict[str, Any] = {
        "runs on": layer.where if layer.delegate is None else f"{layer.where}, delegate {layer.delegate}",
        "operation": layer.operator,
        "PyTorch operators": ", ".join(layer.operators),
        "TOSA operators": ", ".join(layer.tosa_operators),
        "source": layer.source,
        "cycles": layer.cycles,
        "share of cycles": None if layer.share is None else f"{layer.share:.2%}",
        "bound by": layer.bound,
        "MACs": layer.macs or None,
        "MAC utilization": None if layer.utilization is None else f"{layer.utilization:.1%}",
        "input shapes": ", ".join(str(list(shape)) for shape in layer.ifm_shapes),
        "output shape": str(list(layer.ofm_shape)) if layer.ofm_shape else "",
        "kernel library": layer.library,
        **{f"bytes read from {memory}": count for memory, count in layer.read_bytes.items()},
        **{f"bytes written to {memory}": count for memory, count in layer.written_bytes.items()},
    }
    node: Data = {
        "id": str(layer.index),
        "label": (layer.operators[0] if layer.operators else layer.operator).removeprefix("aten."),
        "namespace": layer.module.replace(".", "/"),
        "attrs": [{"key": key, "value": str(value)} for key, value in attrs.items() if value not in (None, "")],
        "incomingEdges": _edges(incoming.get(str(layer.index), [])),
        "outputsMetadata": _metadata(attrs["output shape"]),
    }
    if layer.where == CPU:
        node["style"] = {"backgroundColor": _CPU_COLOR}
    elif layer.share is not None and layer.share >= _HOT:
        node["style"] = {"backgroundColor": _HOT_COLOR}
    return node


def _metadata(shape: str) -> list[Data]:
    return [{"id": "0", "attrs": [{"key": "shape", "value": shape}]}] if shape else []


def node_data(program: Program) -> Data:
    """Return the cycles and transferred bytes of each node of ``program_graph``, in Model Explorer's node data format."""
    layers = dataflow(subject(program.pte, record_of(program).method, sources=record_of(program).command_sources)).layers
    graph = program_graph(program)["id"]
    cycles = {str(layer.index): {"value": layer.cycles} for layer in layers if layer.cycles is not None}
    moved = {str(layer.index): {"value": sum(layer.read_bytes.values()) + sum(layer.written_bytes.values())} for layer in layers}
    gradient = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e2571e"}]
    return {
        name: {graph: {"name": name, "results": results, "gradient": gradient}}
        for name, results in (("cycles", cycles), ("bytes", moved))
        if results
    }


def save_node_data(program: Program, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``bytes.json``, and ``cycles.json`` if cycles are known, for Model Explorer's option ``--node_data_paths``."""
    paths = []
    for name, graph_results in node_data(program).items():
        path = Path(folder) / f"{name}.json"
        write_whole(path, json.dumps(graph_results).encode())
        paths.append(path)
    return paths


def tosa_graphs(folder: Path) -> list[Data]:
    """Return the TOSA graph of each delegate in a folder of compilation artifacts."""
    texts = sorted(folder.glob("delegate_*.txt"), key=lambda path: (len(path.name), path.name))
    return [tosa_graph(path.read_text(), f"TOSA of {path.stem.replace('_', ' ')}") for path in texts]


def tosa_graph(text: str, name: str) -> Data:
    """Parse the text of a TOSA graph, omitting control-flow regions."""
    nodes: list[Data] = []
    producers: dict[str, tuple[str, str]] = {}  # producing node and type of each value
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "region":
            break
        if word in ("input", "const") and (match := _VALUE.match(rest)):
            value, kind = match.groups()
            producers[value] = (value, kind)
            nodes.append(_tosa_node(value, f"{word} {value}" if word == "input" else "CONST", "", {"tensor": kind}, [], kind))
        elif word == "output":
            value = rest.strip()[1:]
            nodes.append(_tosa_node(f"output {value}", f"output {value}", "", {}, [producers[value]], ""))
        elif match := _OP.match(line.strip()):
            results = _VALUE.findall(match["results"])
            operands = [producers[part.strip()[1:]] for part in match["operands"].split(",") if part.strip()]
            place = _PLACE.match(match["place"] or "")
            module = (place["module"] or "") if place else ""
            attrs = {
                "PyTorch operator": place["target"] if place else "",
                "source": (place["source"] or "") if place else "",
                "attributes": match["attrs"],
            }
            node = results[0][0]
            nodes.append(_tosa_node(node, match["op"], module.replace(".", "/"), attrs, operands, results[0][1]))
            producers.update({value: (node, kind) for value, kind in results})
    return {"id": name, "nodes": nodes}


def _tosa_node(id: str, label: str, namespace: str, attrs: dict[str, str], operands: list[tuple[str, str]], result: str) -> Data:
    return {
        "id": id,
        "label": label,
        "namespace": namespace,
        "attrs": [{"key": key, "value": value} for key, value in attrs.items() if value],
        "incomingEdges": _edges([node for node, _ in operands]),
        "outputsMetadata": [{"id": "0", "attrs": [{"key": "tensor", "value": result}]}] if result else [],
    }

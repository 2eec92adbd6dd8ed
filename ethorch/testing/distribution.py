"""Which operators a graph has, and how many of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from rich.console import Group
from rich.table import Table
from torch.fx import GraphModule, Node

from ethorch.backend.preprocess import lowered_graphs
from ethorch.lower.fx.node import first_value, op_name
from ethorch.lower.partition_report import PartitionReport
from ethorch.support import tables
from ethorch.support.rendering import as_text

Row = dict[str, Any]


def distribution(module: GraphModule, stage: str, report: PartitionReport | None, table: bool = True, dtypes: bool = True) -> str:
    """The operators of a stage as text.

    Args:
        module: the graph, with its delegates as submodules.
        stage: its name, for the heading.
        report: of the partitioner; None before there is one.
        table: for reading; False: JSON with the keys ``stage``, ``operators``, ``tosa_operators`` and ``summary``.
        dtypes: count each dtype by itself.
    """
    nodes = (node for node in module.graph.nodes if node.op == "call_function")
    operators = _counted(((op_name(node.target), _dtype(node)) for node in nodes), dtypes)
    tosa = _counted(tosa_operators(module), dtypes)
    summary = "" if report is None else report.summary()
    if not table:
        return json.dumps({"stage": stage, "operators": operators, "tosa_operators": tosa, "summary": summary}, indent=2)
    parts: list[Any] = [f"Operators after {stage}:", _drawn(operators)]
    if tosa:
        parts += ["", "TOSA operators:", _drawn(tosa)]
    return as_text(Group(*parts, *(["", f"{summary}."] if summary else [])))


def tosa_operators(module: GraphModule) -> list[tuple[str, str]]:
    """Return name and result dtype of each TOSA operator of the delegates of a lowered graph."""
    ops = (op for graph in lowered_graphs(module) for part in graph.regions() for op in part.ops)
    return [(op.name, op.result.dtype) for op in ops]


def dtype_distribution(module: GraphModule, stage: str, table: bool = True) -> str:
    """Return how many inputs and results of a stage's graph have each dtype, as text. Arguments are those of ``distribution``.

    As JSON, it has the keys ``stage`` and ``dtypes``.
    """
    counts = {
        kind: Counter(_dtype(node) for node in module.graph.nodes if node.op == kind) for kind in ("placeholder", "call_function")
    }
    rows = [
        {"dtype": dtype, "placeholders": counts["placeholder"][dtype], "results": counts["call_function"][dtype]}
        for dtype in sorted(counts["placeholder"] | counts["call_function"])
        if dtype
    ]
    if not table:
        return json.dumps({"stage": stage, "dtypes": rows}, indent=2)
    return as_text(Group(f"Dtypes after {stage}:", _drawn(rows)))


def _counted(found: Iterable[tuple[str, str]], dtypes: bool) -> list[Row]:
    counts = Counter(found if dtypes else ((name, "") for name, _ in found))
    return [
        {"operator": name, **({"dtype": dtype} if dtypes else {}), "count": count}
        for (name, dtype), count in sorted(counts.items())
    ]


def _drawn(rows: list[Row]) -> Table:
    table = tables.table()
    for name in rows[0] if rows else ("operator", "count"):
        table.add_column(name, justify="left" if name in ("operator", "dtype") else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    return table


def _dtype(node: Node) -> str:
    value = first_value(node)
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else ""

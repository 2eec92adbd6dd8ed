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
    """Return the operator counts of a stage's graph as text.

    Args:
        module: Graph with delegates as submodules.
        stage: Name for the heading.
        table: True for a table, False for JSON with the keys ``stage``, ``operators``, ``tosa_operators`` and ``summary``.
        dtypes: Whether to count operators by result dtype.
    """
    nodes = (node for node in module.graph.nodes if node.op == "call_function")
    operators = _count_rows(((op_name(node.target), _dtype(node)) for node in nodes), dtypes)
    tosa = _count_rows(tosa_operators(module), dtypes)
    summary = "" if report is None else report.summary()
    if not table:
        return json.dumps({"stage": stage, "operators": operators, "tosa_operators": tosa, "summary": summary}, indent=2)
    parts: list[Any] = [f"Operators after {stage}:", _create_table(operators)]
    if tosa:
        parts += ["", "TOSA operators:", _create_table(tosa)]
    return as_text(Group(*parts, *(["", f"{summary}."] if summary else [])))


def tosa_operators(module: GraphModule) -> list[tuple[str, str]]:
    """Return (name, result dtype) of each TOSA operator in the delegates."""
    ops = (op for graph in lowered_graphs(module) for part in graph.regions() for op in part.ops)
    return [(op.name, op.result.dtype) for op in ops]


def dtype_distribution(module: GraphModule, stage: str, table: bool = True) -> str:
    """Return, as text, the counts of placeholders and operator results for each dtype.

    The JSON text has the keys ``stage`` and ``dtypes``. See :func:`distribution`.
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
    return as_text(Group(f"Dtypes after {stage}:", _create_table(rows)))


def _count_rows(operators: Iterable[tuple[str, str]], dtypes: bool) -> list[Row]:
    counts = Counter(operators if dtypes else ((name, "") for name, _ in operators))
    return [
        {"operator": name, **({"dtype": dtype} if dtypes else {}), "count": count}
        for (name, dtype), count in sorted(counts.items())
    ]


def _create_table(rows: list[Row]) -> Table:
    table = tables.table()
    for name in rows[0] if rows else ("operator", "count"):
        table.add_column(name, justify="left" if name in ("operator", "dtype") else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    return table


def _dtype(node: Node) -> str:
    value = first_value(node)
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else ""

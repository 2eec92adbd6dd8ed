"""The tables of operators and targets, as plain data."""

from __future__ import annotations

import fnmatch
from dataclasses import fields
from typing import Any

from ethorch.limits import Limits
from ethorch.target import TARGETS, Target, lookup

Row = dict[str, Any]


def operators(pattern: str = "*") -> list[Row]:
    """Operators with a name that contains ``pattern`` or, where it has wildcards, matches it; one row for each."""
    from ethorch.ops.spec import OPS

    wanted = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    specs = {id(spec): spec for name, spec in OPS.items() if fnmatch.fnmatch(name, wanted)}
    return [
        {
            "name": spec.name,
            "also": [*spec.names[1:], *spec.adapters],
            "source": spec.source,
            "doc": spec.doc,
            "quantization": repr(spec.quant) if not callable(spec.quant) else "depends on its arguments",
            "form": "table" if spec.lower is None else "operator",
            "floats": spec.takes_floats,
            "samples": [str(sample) for sample in spec.samples],
        }
        for spec in sorted(specs.values(), key=lambda spec: spec.name)
    ]


def operators_text(rows: list[Row]) -> str:
    """All there is to say of one operator; of several, a line for each."""
    if len(rows) > 1:
        width = max(len(row["name"]) for row in rows)
        return "\n".join(f"{row['name']:<{width}}  {row['doc'].partition(chr(10))[0]}".rstrip() for row in rows)
    (row,) = rows
    lines = [row["name"], *(f"  {line}".rstrip() for line in row["doc"].splitlines())]
    if row["also"]:
        lines.append(f"  also: {', '.join(row['also'])}")
    lines += [f"  quantization: {row['quantization']}", f"  source: {row['source']}"]
    return "\n".join(lines + [f"  sample: {sample}" for sample in row["samples"]])


def targets() -> list[Row]:
    """A row of facts for each target."""
    return [
        {
            "target": target.name,
            "MACs per cycle": target.macs,
            "cores": target.cores,
            "default system config": target.default_system_config,
            "default memory mode": target.default_memory_mode,
        }
        for target in TARGETS.values()
    ]


def target_differences(a: str, b: str) -> dict[str, list[str]]:
    """What differs between two targets: facts, and limits of each TOSA operator. SpecError for unknown names."""
    first, second = _facts(lookup(a)), _facts(lookup(b))
    names = sorted(first.keys() | second.keys(), key=lambda name: ("." in name, name))
    return {
        name: [first.get(name, "no limit"), second.get(name, "no limit")] for name in names if first.get(name) != second.get(name)
    }


def _facts(target: Target) -> dict[str, str]:
    plain = {field.name: str(getattr(target, field.name)) for field in fields(target) if field.name not in ("name", "limits")}
    return plain | {f"{op}.{name}": text for op, limits in target.limits.items() for name, text in limit_rows(limits)}


def limit_rows(limits: Limits) -> list[tuple[str, str]]:
    """(what is limited, what is allowed) for each limit of one operator."""
    if not limits.present:
        return [("absent", "the NPU has none")]
    found = [(feature, str(allowed)) for feature, allowed in limits.ranges.items()]
    if limits.dtypes is not None:
        found.append(("dtype", ", ".join(sorted(limits.dtypes))))
    if limits.rule:
        found.append(("rule", (limits.rule.__doc__ or limits.rule.__name__).partition("\n")[0]))
    return found

"""The tables of operators and targets, as plain data."""

from __future__ import annotations

import fnmatch
from dataclasses import fields, is_dataclass
from typing import Any

from ethorch.target.npus import TARGETS, Target, lookup
from ethorch.target.tuning import Tuning
from ethorch.tosa.limits import Limits

Row = dict[str, Any]


def operators(pattern: str = "*") -> list[Row]:
    """Operators with a name that contains ``pattern`` or, where it has wildcards, matches it; one row for each."""
    from ethorch.ops.spec import OPS  # `ethorch targets` does without it and so without 2 seconds of torch

    wanted = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    specs = {id(spec): spec for name, spec in OPS.items() if fnmatch.fnmatch(name, wanted)}
    return [
        {
            "name": spec.name,
            "also": [*spec.names[1:], *spec.adapters],
            "source": spec.source,
            "what": " ".join(spec.doc.partition("\n\n")[0].split()),
            "doc": spec.doc,
            "quantization": repr(spec.quant) if not callable(spec.quant) else "depends on its arguments",
            "kind": spec.kind,
            "floats": spec.takes_floats,
            "samples": [str(sample) for sample in spec.samples],
        }
        for spec in sorted(specs.values(), key=lambda spec: spec.name)
    ]


def operators_text(rows: list[Row]) -> str:
    """All there is to say of one operator; of several, a line for each."""
    if len(rows) > 1:
        width = max(len(row["name"]) for row in rows)
        return "\n".join(f"{row['name']:<{width}}  {row['what']}".rstrip() for row in rows)
    (row,) = rows
    lines = [row["name"], *(f"  {line}".rstrip() for line in row["doc"].splitlines())]
    if row["also"]:
        lines.append(f"  also: {', '.join(row['also'])}")
    lines += [f"  kind: {row['kind']}", f"  quantization: {row['quantization']}", f"  source: {row['source']}"]
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
    """What differs between two targets: facts, choices of their tuning, limits of TOSA operators. SpecError for unknown names."""
    first, second = lookup(a), lookup(b)
    rows: dict[str, list[str]] = {}
    for name in (field.name for field in fields(Target) if field.name not in ("name", "limits", "tuning")):
        rows[name] = [str(getattr(target, name)) for target in (first, second)]
    choices = [tuning_rows(target.tuning) for target in (first, second)]
    for name in tuning_names(*choices):
        rows[f"tuning.{name}"] = [found.get(name, "-") for found in choices]
    limits = [_limits(target) for target in (first, second)]
    for name in sorted(limits[0].keys() | limits[1].keys()):
        rows[name] = [found.get(name, "no limit") for found in limits]
    return {name: values for name, values in rows.items() if values[0] != values[1]}


def tuning_rows(tuning: Tuning) -> dict[str, str]:
    """Field -> the choice. A choice that is made of several numbers has a row for each, called field.number."""
    return _choices("", tuning)


def tuning_names(*choices: dict[str, str]) -> list[str]:
    """The names of all rows, each number behind the choice that it belongs to."""
    order = [field.name for field in fields(Tuning)]
    return sorted(dict.fromkeys(name for rows in choices for name in rows), key=lambda name: order.index(name.partition(".")[0]))


def _choices(prefix: str, group: Any) -> dict[str, str]:
    rows: dict[str, str] = {}
    for field in fields(group):
        name, value = prefix + field.name, getattr(group, field.name)
        if is_dataclass(value):
            rows |= {name: type(value).__name__} | _choices(f"{name}.", value)
        elif value is None or isinstance(value, bool):
            rows[name] = "yes" if value else "no"
        else:
            rows[name] = f"{value:g}" if isinstance(value, float) else str(value)
    return rows


def _limits(target: Target) -> dict[str, str]:
    return {f"{op}.{name}": text for op, limits in target.limits.items() for name, text in limit_rows(limits)}


def limit_rows(limits: Limits) -> list[tuple[str, str]]:
    """(what is limited, what is allowed) for each limit of one operator."""
    if not limits.present:
        return [("absent", "the NPU has none")]
    found = [(feature, str(allowed)) for feature, allowed in limits.ranges.items()]
    if limits.dtypes is not None:
        found.append(("dtype", ", ".join(sorted(limits.dtypes))))
    return found

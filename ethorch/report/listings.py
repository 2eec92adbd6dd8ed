"""Tables of operators and targets as JSON-compatible data."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import fields, is_dataclass
from typing import Any

from ethorch.report import support
from ethorch.report.limit_words import limits_of, words
from ethorch.report.operators import OperatorFacts, operator_facts
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.npus import TARGETS, Target, lookup
from ethorch.targets.tuning import Tuning
from ethorch.tosa.limits import Limits

Row = dict[str, Any]
#: Text that ``target_differences`` returns for a TOSA operator that a target does not support.
ABSENT = "not supported"


def operators(pattern: str = "*") -> list[Row]:
    """Return a row for each operator whose name contains ``pattern`` or, if ``pattern`` has wildcards, matches it.

    PyTorch names such as ``torch.softmax``, ``nn.Softmax`` and ``F.softmax`` are also accepted.
    """
    wildcard = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    matches = [
        facts
        for facts in operator_facts()
        if pattern.removeprefix("torch.") in [name.removeprefix("torch.") for name in facts.pytorch]
        or any(fnmatch.fnmatch(name, wildcard) for name in (*facts.names, *facts.adapters))
    ]
    return [_operator(facts) for facts in matches]


def operator_names() -> list[str]:
    """Return all names that select an operator, with and without a module prefix."""
    names: dict[str, None] = {}
    for facts in operator_facts():
        for name in (*facts.pytorch, *facts.names, *facts.adapters):
            names |= dict.fromkeys((name, name.split(".")[1] if "." in name else name))
    return list(names)


def _operator(spec: OperatorFacts) -> Row:
    tried = support.table()[spec.name]
    emitted = [name for operators in tried.tosa.values() for name in operators]
    refused: dict[tuple[str, str], Row] = {}
    for case, calls in tried.refused.items():
        for refusal in calls:
            text = re.sub(r" on ethos-u\d+-\d+", "", refusal.reason.text)
            row = refused.setdefault(
                (refusal.reason.id, text), {"id": refusal.reason.id, "reason": text, "remedy": refusal.reason.remedy}
            )
            if case not in row.setdefault("cases", []):
                row["cases"].append(case)
            call = spec.calls[refusal.call]
            if call not in row.setdefault("calls", []):
                row["calls"].append(call)
            row["refused"] = sorted({*row.get("refused", []), refusal.call})
    for row in refused.values():
        row["refused"] = len(row["refused"])
    return {
        "name": spec.name,
        "also": [*spec.names[1:], *spec.adapters],
        "pytorch": list(spec.pytorch),
        "source": spec.source,
        "what": " ".join(spec.doc.partition("\n\n")[0].split()),
        "doc": spec.doc,
        "kind": spec.kind,
        "floats": spec.has_float_form,
        "calls": tried.calls,
        "support": {case: tried.verdict(case) for case in support.CASES},
        "refused": list(refused.values()),
        "limits": [{"families": families, "limits": phrases} for families, phrases in limits_of(emitted, _has_window(spec.name))],
        "cost": _cost(spec, tried),
        "example": {"call": spec.calls[0], "tensors": spec.tensors},
    }


def _has_window(name: str) -> bool:
    return any(part in name for part in ("conv", "pool", "im2col", "unfold"))


def _cost(spec: OperatorFacts, tried: support.Support) -> str:
    if spec.absorbs:
        return "none if fused into a preceding operator with a quantized output; otherwise one pass over the tensor."
    if spec.kind == "table":
        return "int8: one pass over the tensor, even for a chain of elementwise functions. " + _becomes(tried)
    if spec.moves:
        return "no arithmetic; a copy, unless the adjacent operators can read and write in place. " + _becomes(tried)
    return _becomes(tried)


def _becomes(tried: support.Support) -> str:
    texts = []
    for case, operators in tried.tosa.items():
        if case.endswith(("int8", "int16")) and case.startswith(("U55", "U85")) and operators:
            texts.append(f"{case}: {', '.join(operators)}")
    return f"TOSA operators for the example: {'; '.join(texts)}." if texts else "no NPU runs the example."


def operators_text(rows: list[Row]) -> str:
    """Format the details of a single operator, or one line per operator."""
    if len(rows) > 1:
        width = max(len(row["name"]) for row in rows)
        lines = [f"{'':<{width}}  {'U55':<12}{'U65':<12}{'U85':<12}"]
        lines += [f"{row['name']:<{width}}  {_three(row)}{row['what']}".rstrip() for row in rows]
        return "\n".join(
            [*lines, "", "`ethorch ops NAME` shows details. int8 / int16: number of tested calls that the NPU supports."]
        )
    (row,) = rows
    lines = [row["name"], *(f"  {line}".rstrip() for line in row["doc"].splitlines()), ""]
    if row["pytorch"]:
        lines.append(f"In PyTorch: {', '.join(row['pytorch'])}")
    if row["also"]:
        lines.append(f"Other names in exported graphs: {', '.join(row['also'])}")
    lines += ["", f"Supported calls ({row['calls']} tested):"]
    for family in support.FAMILIES:
        lines.append(f"  {family}: " + ", ".join(f"{kind} {row['support'][f'{family} {kind}']}" for kind in support.ACTIVATIONS))
    lines.append(f"  TOSA, float: {row['support']['TOSA FP']}")
    for refusal in row["refused"]:
        lines += [
            f"  Not supported on {', '.join(refusal['cases'])}: {refusal['reason']} [{refusal['id']}] {refusal['remedy']}".rstrip()
        ]
        lines += [f"    {call}" for call in refusal["calls"][:3]]
        if len(refusal["calls"]) > 3:
            lines.append(f"    and {len(refusal['calls']) - 3} more")
    if row["limits"]:
        lines += ["", "Limits:", *(f"  {entry['families']}: {'; '.join(entry['limits'])}" for entry in row["limits"])]
    lines += ["", f"Cost: {row['cost']}", f"Example: {row['example']['call']}  # {row['example']['tensors']}"]
    return "\n".join(lines)


def verdicts(row: Row, family: str) -> str:
    """Summarize the calls that an NPU family supports, e.g. ``all``, ``no``, ``3 of 5``, or ``all / no`` for int8 and int16."""
    family_verdicts = [row["support"][f"{family} {kind}"] for kind in support.ACTIVATIONS]
    return family_verdicts[0] if family_verdicts[0] == family_verdicts[1] else " / ".join(family_verdicts)


def _three(row: Row) -> str:
    return "".join(f"{verdicts(row, family):<12}" for family in support.FAMILIES)


def targets() -> list[Row]:
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


def target_differences(a: str, b: str) -> Row:
    """Return the differences between two targets.

    Returns:
        A dict with the keys ``targets``, ``facts``, ``operators`` and ``limits``. ``facts`` (keyed by name) and ``limits``
        (keyed by TOSA operator) contain entries that differ, with both targets' values. ``operators`` lists, for each target,
        the operators for which it supports more calls than the other target.

    Raises:
        SpecError: A target is unknown.
    """
    pair = lookup(a), lookup(b)
    described = [_facts(target) for target in pair]
    facts = {name: [described[0][name], described[1][name]] for name in described[0] if described[0][name] != described[1][name]}
    limits = {}
    for name in sorted(pair[0].limits.keys() | pair[1].limits.keys()):
        texts = [_limits(target, name) for target in pair]
        if texts[0] != texts[1]:
            limits[name] = texts
    more = {target.name: _runs_more(*order) for target, order in ((pair[0], pair), (pair[1], pair[::-1]))}
    return {"targets": [target.name for target in pair], "facts": facts, "operators": more, "limits": limits}


def _facts(target: Target) -> dict[str, str]:
    memory = EthosUCompileSpec(target.name).memory_system
    staging = memory.arena_cache_bytes if memory.staged else None
    staged = "" if not memory.staged else f", staged in {memory.cache_area}"
    clock = memory.core_clock_hz / 1e6
    return {
        "MACs per cycle": str(target.macs),
        "cores": str(target.cores),
        "clock of the default system config": f"{clock:g} MHz",
        "peak at that clock": f"{2 * target.macs * clock / 1e6:g} TOPS",
        "default system config": target.default_system_config,
        "default memory mode": target.default_memory_mode,
        "feature maps by default": f"in {memory.arena_area}{staged}",
        "weights by default": f"in {'the same SRAM' if memory.constants_in_sram else memory.const_area}",
        "staging memory": "none" if staging is None else f"{staging:,} bytes",
        "addresses": f"{target.address_bits} bits",
    }


def _limits(target: Target, operator: str) -> str:
    limits = target.limits.get(operator)
    if limits is None:
        return "any"
    return "; ".join(words(limits)) if limits.present else ABSENT


def _runs_more(target: Target, baseline: Target) -> list[str]:
    names = target.family.upper(), baseline.family.upper()
    operators = []
    for name, tried in support.table().items():
        kinds = [k for k in support.ACTIVATIONS if len(tried.refused[f"{names[0]} {k}"]) < len(tried.refused[f"{names[1]} {k}"])]
        if kinds:
            operators.append(f"{name} ({', '.join(kinds)})")
    return operators


def tuning_rows(tuning: Tuning) -> dict[str, str]:
    """Return the value of each field in ``tuning`` as text. Fields of a nested dataclass are named ``field.name``."""
    return _choices("", tuning)


def tuning_names(*choices: dict[str, str]) -> list[str]:
    """Return the distinct names in several results of :func:`tuning_rows`, in the order of the fields."""
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


def limit_rows(limits: Limits) -> list[tuple[str, str]]:
    """Return (feature, supported values) for each limit of a TOSA operator."""
    if not limits.present:
        return [("absent", "not supported by the NPU")]
    rows = [(feature, str(allowed)) for feature, allowed in limits.ranges.items()]
    if limits.dtypes is not None:
        rows.append(("dtype", ", ".join(sorted(limits.dtypes))))
    return rows

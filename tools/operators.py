"""Collect the facts about operators that ``ethorch.report.operators`` reads, from the table ``OPS``."""

from __future__ import annotations

import json
from dataclasses import asdict

from ethorch.formats.files import write_whole
from ethorch.lower.ops.spec import OPS
from ethorch.report import support
from ethorch.report.operators import PATH, OperatorFacts, operator_facts
from tools import pytorch_names


def collect() -> list[OperatorFacts]:
    """Return the facts about all operators, sorted by name."""
    facts = []
    for spec in sorted({id(spec): spec for spec in OPS.values()}.values(), key=lambda spec: spec.name):
        refused = {refusal.call for calls in support.table()[spec.name].refused.values() for refusal in calls}
        calls = {number: pytorch_names.example(spec.name, spec.samples[number]) for number in sorted({0, *refused})}
        facts.append(
            OperatorFacts(
                tuple(spec.names),
                tuple(spec.adapters),
                tuple(pytorch_names.names([*spec.names, *spec.adapters])),
                spec.kind,
                spec.source.partition(":")[0],
                spec.doc,
                spec.has_float_form,
                spec.absorbs,
                spec.moves,
                {number: call for number, (call, _) in calls.items()},
                calls[0][1],
            )
        )
    return facts


def write() -> None:
    """Write ``operators.json``, a line for each operator."""
    rows = [json.dumps(asdict(facts)) for facts in collect()]
    write_whole(PATH, ("[\n" + ",\n".join(rows) + "\n]\n").encode())
    operator_facts.cache_clear()

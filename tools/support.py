"""Determine which calls of each operator run on each NPU, and write the table of ``ethorch.report.support``.

``python -m tools.support [NAME ...]`` updates the named operators, or all operators that are new or have changed samples.
``--all`` updates every operator in about ten minutes. Vela does not run, because the lowering determines the support.
"""

from __future__ import annotations

import argparse
import json
import logging
import zlib
from collections.abc import Iterator
from typing import Any

from ethorch.formats.files import write_whole
from ethorch.lower.ops.sample_calls import Call, inputs_for
from ethorch.lower.ops.spec import OPS
from ethorch.report.support import CASES, FAMILIES, PATH
from ethorch.support.errors import EthorchError, QuantizationError, Reason
from tools.dry_run import dry_run


def fingerprint(spec: Any) -> int:
    """Return a checksum of the samples of an operator."""
    return zlib.crc32(repr([(sample, sample.overload) for sample in spec.samples]).encode())


def dry_run_samples(spec: Any) -> dict[str, Any]:
    """Return the result of the dry run of each sample of an operator, as JSON data."""
    refused: dict[str, list[list[Any]]] = {}
    tosa: dict[str, list[str]] = {}
    for case in CASES:
        for index, sample in enumerate(spec.samples):
            reason, operators = _outcome(spec.name, sample, case)
            if reason is not None:
                refused.setdefault(case, []).append([index, reason.id, reason.text, reason.remedy])
            elif case not in tosa:
                tosa[case] = operators
    return {"calls": len(spec.samples), "samples": fingerprint(spec), "refused": refused, "tosa": tosa}


def _outcome(name: str, sample: Any, case: str) -> tuple[Reason | None, list[str]]:
    """Return the reason that a call stays on the CPU, or None, and its TOSA operators in order of first use."""
    module, inputs = Call(name, sample), [inputs_for(sample, seed) for seed in range(2)]
    family, _, activations = case.partition(" ")
    try:
        return dry_run(module, inputs, FAMILIES.get(family, ""), activations)
    except QuantizationError as error:
        return Reason(error.id, str(error).removesuffix(f" [{error.id}]"), "See the message for supported values."), []


def _find_outdated(rows: dict[str, Any], specs: dict[str, Any]) -> Iterator[str]:
    for name, spec in specs.items():
        if name not in rows or rows[name]["samples"] != fingerprint(spec):
            yield name


def main(arguments: list[str] | None = None) -> None:
    """Update operators, and write the table."""
    parser = argparse.ArgumentParser("python -m tools.support", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", help="canonical names, such as aten.softmax.int")
    parser.add_argument("--all", action="store_true", help="update every operator")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    specs = {spec.name: spec for spec in sorted({id(s): s for s in OPS.values()}.values(), key=lambda spec: spec.name)}
    for name in options.name:
        if name not in specs:
            raise EthorchError(f"unknown operator {name!r}. Use a canonical name listed by `ethorch ops`.")
    rows = json.loads(PATH.read_text(encoding="utf-8")) if PATH.is_file() else {}
    for name in options.name or (list(specs) if options.all else list(_find_outdated(rows, specs))):
        rows[name] = dry_run_samples(specs[name])
        lines = [f"{json.dumps(operator)}: {json.dumps(rows[operator])}" for operator in specs if operator in rows]
        write_whole(PATH, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
        print(name, flush=True)


if __name__ == "__main__":
    main()

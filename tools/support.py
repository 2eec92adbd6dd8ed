"""Try which calls of each operator each NPU runs: the table that ``ethorch.report.support`` reads.

``python -m tools.support [NAME ...]`` tries the operators of these names; without one, those that are new or whose samples
changed; ``--all`` every one, which takes some ten minutes. Vela does not run: the lowering alone says what a target takes.
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
    """Of an operator's samples: another number where they changed."""
    return zlib.crc32(repr([(sample, sample.overload) for sample in spec.samples]).encode())


def tried(spec: Any) -> dict[str, Any]:
    """What the dry run says of each sample of an operator, as plain data."""
    refused: dict[str, list[list[Any]]] = {}
    tosa: dict[str, list[str]] = {}
    for case in CASES:
        for index, sample in enumerate(spec.samples):
            reason, operators = _outcome(spec.name, sample, case)
            if reason is not None:
                refused.setdefault(case, []).append([index, reason.id, reason.text, reason.way_out])
            elif case not in tosa:
                tosa[case] = operators
    return {"calls": len(spec.samples), "samples": fingerprint(spec), "refused": refused, "tosa": tosa}


def _outcome(name: str, sample: Any, case: str) -> tuple[Reason | None, list[str]]:
    """Why a call stays on the CPU, or None; and the TOSA operators it becomes, in order of first use."""
    module, inputs = Call(name, sample), [inputs_for(sample, seed) for seed in range(2)]
    family, _, activations = case.partition(" ")
    try:
        return dry_run(module, inputs, FAMILIES.get(family, ""), activations)
    except QuantizationError as error:
        return Reason(error.id, str(error).removesuffix(f" [{error.id}]"), "The message says what is allowed."), []


def _missing(known: dict[str, Any], specs: dict[str, Any]) -> Iterator[str]:
    for name, spec in specs.items():
        if name not in known or known[name]["samples"] != fingerprint(spec):
            yield name


def main(arguments: list[str] | None = None) -> None:
    """Try operators, and write the table."""
    parser = argparse.ArgumentParser("python -m tools.support", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", help="canonical names, such as aten.softmax.int")
    parser.add_argument("--all", action="store_true", help="every operator")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    specs = {spec.name: spec for spec in sorted({id(s): s for s in OPS.values()}.values(), key=lambda spec: spec.name)}
    for name in options.name:
        if name not in specs:
            raise EthorchError(f"no operator is called {name!r}; give a canonical name, as `ethorch ops` lists them.")
    known = json.loads(PATH.read_text(encoding="utf-8")) if PATH.is_file() else {}
    for name in options.name or (list(specs) if options.all else list(_missing(known, specs))):
        known[name] = tried(specs[name])
        rows = [f"{json.dumps(kept)}: {json.dumps(known[kept])}" for kept in specs if kept in known]
        write_whole(PATH, ("{\n" + ",\n".join(rows) + "\n}\n").encode())
        print(name, flush=True)


if __name__ == "__main__":
    main()

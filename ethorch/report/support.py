"""Which calls of each operator each NPU runs: found by a dry run of the lowering, kept in ``support.json``.

``python -m ethorch.report.support [NAME ...]`` tries the operators of these names; without one, those that are new or whose
samples changed; ``--all`` every one, which takes some ten minutes. Vela does not run: the lowering alone says what a target takes.
"""

from __future__ import annotations

import argparse
import json
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ethorch.formats.files import write_whole
from ethorch.support.errors import EthorchError, QuantizationError, Reason

PATH = Path(__file__).with_name("support.json")
#: One NPU of each family: what one can run, all of its family can.
FAMILIES = {"U55": "ethos-u55-128", "U65": "ethos-u65-256", "U85": "ethos-u85-256"}
ACTIVATIONS = ("int8", "int16")
#: What is tried: families with each type of activations, and TOSA's profile of floats.
CASES = (*(f"{family} {activations}" for family in FAMILIES for activations in ACTIVATIONS), "TOSA FP")


@dataclass(frozen=True)
class Refused:
    """A call that stays on the CPU.

    Attributes:
        call: which of the operator's samples.
        reason: why.
    """

    call: int
    reason: Reason


@dataclass(frozen=True)
class Support:
    """What was tried of one operator.

    Attributes:
        calls: how many.
        refused: case, as in CASES -> the calls that stay on the CPU.
        tosa: case -> the TOSA operators that the first call becomes; empty where it is refused.
    """

    calls: int
    refused: dict[str, tuple[Refused, ...]]
    tosa: dict[str, tuple[str, ...]]

    def verdict(self, case: str) -> str:
        """``all``, ``3 of 5`` or ``no``."""
        left = self.calls - len(self.refused[case])
        return "all" if left == self.calls else f"{left} of {self.calls}" if left else "no"


@cache
def table() -> dict[str, Support]:
    """Operator -> what was found, as ``support.json`` has it."""
    return {name: _read(row) for name, row in json.loads(PATH.read_text(encoding="utf-8")).items()}


def _read(row: dict[str, Any]) -> Support:
    refused = {
        case: tuple(Refused(call, Reason(id, text, way_out)) for call, id, text, way_out in row["refused"].get(case, []))
        for case in CASES
    }
    return Support(row["calls"], refused, {case: tuple(row["tosa"].get(case, ())) for case in CASES})


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
    from ethorch.lower.ops.sample_calls import Call, inputs_for  # 2 seconds of PyTorch, which a reader of the table does without
    from ethorch.report.dry_run import dry_run  # 2 seconds of PyTorch

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
    parser = argparse.ArgumentParser("python -m ethorch.report.support", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", help="canonical names, such as aten.softmax.int")
    parser.add_argument("--all", action="store_true", help="every operator")
    options = parser.parse_args(arguments)
    from ethorch.lower.ops.spec import OPS  # 2 seconds of PyTorch, which a reader of the table does without

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

"""Run one operator in every layer: ``python -m tests.helpers.ladder NAME [--target T] [--int16] [--sample N]``.

Prints a row for each sample: the cost of quantization relative to float PyTorch, the distance in codes between the TOSA reference
model and the fake-quantized module, and the number of elements that differ between simulator and reference model. The last line
compares the bounds that these samples need with those that the operator declares.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches

import torch

from bench.implementation import stdout_for_json
from ethorch import sqnr_db
from ethorch.lower.ops import OPS
from ethorch.lower.ops.spec import OpSpec
from ethorch.support.errors import Unsupported
from ethorch.targets.npus import TARGETS
from tests.helpers.ladder.rungs import climbed
from tests.helpers.ladder.samples import export

COLUMNS = ("sample", "quantization, dB", "TOSA ops", "steps off", "distinct", "simulator")


def named(text: str) -> list[OpSpec]:
    """Return the operators with a name such as ``aten.softmax.int``, ``softmax.int`` or ``softmax``.

    Raises:
        ValueError: No operator has this name. The message contains similar names.
    """
    known: dict[str, dict[str, OpSpec]] = {}
    for name, spec in OPS.items():
        _, _, short = name.partition(".")
        for spelling in (name, short, short.partition(".")[0]):
            known.setdefault(spelling, {})[spec.name] = spec
    if text not in known:
        near = get_close_matches(text, known, n=5, cutoff=0.6)
        raise ValueError(f"no operator is called {text!r}." + (f" Did you mean {', '.join(near)}?" if near else ""))
    return list(known[text].values())


def rows(spec: OpSpec, target: str, activations: str, samples: list[int]) -> Iterator[tuple[tuple[str, ...], int, bool]]:
    """Return a row per sample: distances between the layers, and whether the simulator is correct."""
    for index in samples:
        label = textwrap.shorten(f"{index}: {spec.samples[index]}", 60, placeholder=" ...")
        case = export(spec.name, index, activations, True)
        with torch.no_grad():
            decibels = sqnr_db(case.float_module(*case.inputs), case.q.module(*case.inputs))
        try:
            found = climbed(case.q, case.inputs, target)
        except Unsupported as refusal:
            yield (label, f"{decibels:.1f}", f"refused: {refusal.reason.id}", "", "", ""), 0, True
            continue
        elements = sum(output.size for output in found.reference)
        distinct = len(torch.from_numpy(found.reference[0]).unique())
        simulator = f"{found.different} of {elements} differ" if found.different else "equal"
        cells = (label, f"{decibels:.1f}", str(len(found.graph.ops)), str(found.steps_off), str(distinct), simulator)
        yield cells, found.steps_off, not found.different


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.ladder", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="an operator: aten.softmax.int, softmax.int or softmax")
    parser.add_argument("--target", default="ethos-u55-128", choices=TARGETS, metavar="T", help="default: %(default)s")
    parser.add_argument("--int16", action="store_true", help="activations in int16 instead of int8")
    parser.add_argument("--sample", type=int, help="only the sample with this number")
    options = parser.parse_args(arguments)
    try:
        specs = named(options.name)
    except ValueError as error:
        parser.error(str(error))
    activations, right = "int16" if options.int16 else "int8", True
    for spec in specs:
        samples = list(range(len(spec.samples)))
        if options.sample is not None and options.sample not in samples:
            parser.error(f"{spec.name} has the samples 0 to {len(samples) - 1}")
        with stdout_for_json():  # the reference model prints warnings there
            found = list(rows(spec, options.target, activations, samples if options.sample is None else [options.sample]))
        table = [COLUMNS, *(cells for cells, _, _ in found)]
        widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
        print(f"{spec.name}, {activations}, {options.target}")
        for line in table:
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        needed = max((steps for _, steps, _ in found), default=0)
        name, declared = ("bound16", spec.bound16) if options.int16 else ("bound", spec.bound)
        verdict = "holds" if needed <= declared else "is too small"
        print(f"  These samples need {name}={needed}; the operator's {name}={declared} {verdict}.\n", flush=True)
        right = right and needed <= declared and all(equal for _, _, equal in found)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

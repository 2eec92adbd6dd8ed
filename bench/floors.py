"""Compute lower bounds of each network's cycles, from computing and from reading weights from flash.

``python -m bench.floors [--models a,b] [--targets t,u] [--json]``

All figures derive from Vela's figures for each operation. Vela estimates an operation as the longer of computing and reading. The
lower bound of a network is the larger of two sums: the cycles of all computing, and the cycles of reading all weights once.
Products are the cycles of a fully used multiplier array.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from bench.compile import DEFAULT_TARGETS, markdown_row, provenance
from bench.implementation import memory_for
from bench.models import ALL_MODELS, models_named
from ethorch.models.load import UserModel
from ethorch.program.build import build_program, single_method
from ethorch.targets.settings import Settings

_CLASSES = 3  # of operations that are named


@dataclass(frozen=True)
class Floors:
    """Cycles of one network on one target.

    Attributes:
        total: Estimated cycles.
        npu: Cycles of computing alone.
        products: Multiply-accumulates, divided by those of the NPU per cycle.
        weights: Cycles of reading the encoded weights once.
        waits: Cycles of the operations in which memory is slower than computing.
        classes: Vela's names of the operations with the most cycles, and their share.
    """

    model: str
    target: str
    total: int
    npu: int
    products: int
    weights: int
    waits: int
    classes: dict[str, float]

    @property
    def reachable(self) -> int:
        """The lower bound: the cycles if weights are always available in time."""
        return max(self.npu, self.weights)


def measure(model: str, target: str) -> Floors:
    """Return the lower bounds of a network's program, without operators on the CPU."""
    case = ALL_MODELS[model]
    user = UserModel(case.build(), case.example_inputs(), case.calibration())
    system_config, memory_mode = memory_for(target)
    settings = Settings(target, system_config=system_config, memory_mode=memory_mode, arena="fast")
    program = build_program(single_method(user), settings)
    assert program.build is not None
    spec = settings.spec
    models = [delegate.compiled for delegate in program.build.delegates]
    rows = [row for compiled in models for row in compiled.rows()]
    by_class: dict[str, int] = {}
    for row in rows:
        by_class[row.operator] = by_class.get(row.operator, 0) + row.op_cycles
    total = sum(compiled.performance.total_cycles for compiled in models)
    most = sorted(by_class, key=lambda name: -by_class[name])[:_CLASSES]
    rate = spec.bytes_per_cycle[spec.memory_system.const_area]
    return Floors(
        model,
        target,
        total,
        sum(row.npu_cycles for row in rows),
        sum(compiled.performance.mac_count for compiled in models) // spec.target.macs,
        round(sum(compiled.performance.encoded_weight_bytes for compiled in models) / rate),
        sum(row.op_cycles - row.npu_cycles for row in rows),
        {name: by_class[name] / total for name in most},
    )


def table(floors: Sequence[Floors], target: str) -> str:
    """Format a Markdown table of cycles in thousands."""
    head = ["model", "cycles, k", "computing", "products", "weights once", "waits for memory", "reachable", "most of it"]
    lines = [f"{target}, {', '.join(memory_for(target))}", "", markdown_row(head), markdown_row(["---"] * len(head))]
    for row in (row for row in floors if row.target == target):
        figures = (row.total, row.npu, row.products, row.weights)
        cells = [f"{figure / 1e3:,.0f}" for figure in figures]
        cells += [f"{row.waits / row.total:.0%}", f"{row.reachable / row.total:.2f}"]
        lines.append(markdown_row([row.model, *cells, ", ".join(f"{name} {share:.0%}" for name, share in row.classes.items())]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.floors", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help='comma-separated, or "all"; default: the first seven')
    parser.add_argument("--targets", default=",".join(DEFAULT_TARGETS), help="comma-separated")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    models, targets = models_named(parser, options.models), options.targets.split(",")
    torch.set_num_threads(1)
    found = [measure(model, target) for target in targets for model in models]
    if options.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return 0
    print(provenance())
    for target in targets:
        print("\n" + table(found, target))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What keeps each network from fewer cycles: computing, weights from flash, and what of both is the least there can be.

``python -m bench.floors [--models a,b] [--targets t,u] [--json]``

All from Vela's own figures of each operation. In the estimate an operation takes as long as the longer of computing and reading.
A network takes no less than all its computing, nor than reading all its weights once: the larger of the two is what it would take
with weights that are always there in time. Products alone are what a full array of multipliers would need.
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
        total: as estimated.
        npu: computing alone.
        products: multiply-adds over the NPU's in a cycle.
        weights: reading the encoded weights once.
        waits: what the operations take longer for memory than for computing.
        classes: Vela's names of the operations that take most, and their share.
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
        """With weights that are always there in time."""
        return max(self.npu, self.weights)


def measure(model: str, target: str) -> Floors:
    """The floors of a network's program; operators on the CPU do not count."""
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


def table(found: Sequence[Floors], target: str) -> str:
    """Markdown: cycles in thousands."""
    head = ["model", "cycles, k", "computing", "products", "weights once", "waits for memory", "reachable", "most of it"]
    lines = [f"{target}, {', '.join(memory_for(target))}", "", markdown_row(head), markdown_row(["---"] * len(head))]
    for row in (row for row in found if row.target == target):
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

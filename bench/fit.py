"""What the search for a smaller arena and weights in SRAM are worth: RAM and cycles, network by network.

``python -m bench.fit [--models a,b] [--targets t,u] [--json]``

Each network is quantized once and compiled three times: with the arena that Vela likes, with the smallest one that costs hardly
more cycles, and with the weights in SRAM. One input runs through all three in the simulator, and the outputs have to be the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

import ethorch
from bench.compile import DEFAULT_TARGETS, geometric_mean, markdown_row, provenance
from bench.implementation import memory_for
from bench.models import ALL_MODELS, models_named
from ethorch.model_files import UserModel
from ethorch.program.compile import compile_once, quantized_for
from ethorch.program.program import Program
from ethorch.program.settings import Settings


@dataclass(frozen=True)
class Row:
    """One network on one target.

    Attributes:
        arena_bytes: the NPU's arena, as Vela likes it and without waste.
        ram_bytes: of the whole application, likewise, and with weights in SRAM.
        cycles: of the NPU, likewise.
    """

    model: str
    target: str
    arena_bytes: tuple[int, int]
    ram_bytes: tuple[int, int, int]
    cycles: tuple[int, int, int]


def measure(model: str, target: str) -> Row:
    """The row of a network; AssertionError where two programs give other bits."""
    case = ALL_MODELS[model]
    user = UserModel(case.build(), case.example_inputs(), case.calibration())
    system_config, memory_mode = memory_for(target)
    plain = Settings(target, system_config=system_config, memory_mode=memory_mode, arena="fast")
    quantized = quantized_for(user, plain)
    chosen = (plain, plain.with_(arena="free"), Settings(target, system_config=system_config, constants="sram"))
    programs = [compile_once(user, quantized, settings) for settings in chosen]
    outputs = [torch.utils._pytree.tree_leaves(program(*user.example_inputs)) for program in programs]
    for other in outputs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(outputs[0], other, strict=True)), f"{model} on {target}: other bits"
    return Row(
        model,
        target,
        (_arena(programs[0]), _arena(programs[1])),
        (programs[0].memory.ram_bytes, programs[1].memory.ram_bytes, programs[2].memory.ram_bytes),
        (programs[0].total_cycles or 0, programs[1].total_cycles or 0, programs[2].total_cycles or 0),
    )


def _arena(program: Program) -> int:
    assert program.build is not None
    return max((d.compiled.scratch_fast_bytes or d.compiled.scratch_bytes for d in program.build.delegates), default=0)


def table(rows: Sequence[Row], target: str) -> str:
    """Markdown, with geometric means of the ratios."""
    head = ["model", "arena, KiB", "RAM, KiB", "cycles", "cycles, weights in SRAM", "RAM then, KiB"]
    lines = [f"### {target}, {', '.join(memory_for(target))}", "", markdown_row(head), markdown_row(["---"] * len(head))]
    mine = [row for row in rows if row.target == target]
    for row in mine:
        arena, ram, cycles = row.arena_bytes, row.ram_bytes, row.cycles
        lines.append(
            markdown_row(
                [
                    row.model,
                    f"{arena[0] / 1024:.0f} -> {arena[1] / 1024:.0f} ({arena[1] / arena[0]:.2f})",
                    f"{ram[0] / 1024:.0f} -> {ram[1] / 1024:.0f} ({ram[1] / ram[0]:.2f})",
                    f"{cycles[1] / cycles[0]:.3f}",
                    f"{cycles[2] / cycles[0]:.2f}",
                    f"{ram[2] / 1024:.0f}",
                ]
            )
        )
    means = [
        geometric_mean([row.arena_bytes[1] / row.arena_bytes[0] for row in mine]),
        geometric_mean([row.ram_bytes[1] / row.ram_bytes[0] for row in mine]),
        geometric_mean([row.cycles[1] / row.cycles[0] for row in mine]),
        geometric_mean([row.cycles[2] / row.cycles[0] for row in mine]),
    ]
    lines.append(markdown_row(["geometric mean of ratios", *(f"**{mean:.2f}**" for mean in means), ""]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help='comma-separated, or "all"; default: the first seven')
    parser.add_argument("--targets", default=",".join(DEFAULT_TARGETS), help="comma-separated")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of tables")
    options = parser.parse_args(arguments)
    models, targets = models_named(parser, options.models), options.targets.split(",")
    torch.set_num_threads(1)
    rows = []
    for target in targets:
        for model in models:
            print(f"{target} {model} ...", file=sys.stderr, flush=True)
            try:
                rows.append(measure(model, target))
            except ethorch.EthorchError as error:
                print(f"{target} {model}: {error}", file=sys.stderr)
    if options.json:
        json.dump({"provenance": provenance(), "rows": [asdict(row) for row in rows]}, sys.stdout, indent=1)
        print()
        return 0
    print(provenance())
    for target in targets:
        print(f"\n{table(rows, target)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

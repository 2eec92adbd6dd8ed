"""Measure the contribution of each pass over command streams, for the networks of the benchmarks.

``python -m bench.passes [--models NAMES] [--targets NAMES] [--write docs/stream-passes.md]``

Cycles are estimates of ``ethorch.npu.cycles``. The last column is the ratio if each kernel start costs 300 cycles, which
Vela's formulas ignore. ``--write`` replaces the table of that file, and omits networks that change by less than 1%.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.implementation import memory_for
from bench.models import ALL_MODELS, models_named
from ethorch.models.load import UserModel
from ethorch.npu.cycles import Effects, Regions, estimate
from ethorch.npu.ir import Stream, decode
from ethorch.npu.passes.names import PASSES
from ethorch.program.build import build_program, single_method
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates
from ethorch.targets.settings import Settings
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.optimize import read_image

TARGETS = ("ethos-u55-128", "ethos-u85-256")
HEADER = f"| network | target | Vela, cycles | {', '.join(PASSES)} | all | ratio | RAM, bytes | +300 |"
KERNEL_START = 300
#: Rows of networks whose cycles change by less than 1%, which ``--write`` omits.
UNCHANGED = re.compile(r"\| (0\.99\d|1\.000) \|")


def compile_streams(model: str, target: str, stream: str) -> tuple[list[CompiledModel], Regions]:
    """Compile a network of the benchmarks, and return its delegates and the rates of their memories."""
    case, (system_config, memory_mode) = ALL_MODELS[model], memory_for(target)
    user = UserModel(case.build(), case.example_inputs(), case.calibration(2))
    settings = Settings(target, system_config=system_config, memory_mode=memory_mode, stream=stream)
    build = build_program(single_method(user), settings).build
    assert build is not None
    spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
    return [delegate.compiled for delegate in build.delegates], read_memory_rates(spec)


def decode_all(models: Sequence[CompiledModel]) -> list[Stream]:
    return [decode(compiled.command_stream, read_image(compiled)) for compiled in models]


def list_rows(models: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
    """Iterate over the rows of the table."""
    for target in targets:
        ratios = []
        for model in models:
            (before, regions), (after, _) = (compile_streams(model, target, stream) for stream in ("vela", "optimized"))
            streams = decode_all(before), decode_all(after)
            old, new = (sum(estimate(s, regions).cycles for s in group) for group in streams)
            slow = Effects(kernel_start=KERNEL_START)
            old_slow, new_slow = (sum(estimate(s, regions, slow).cycles for s in group) for group in streams)
            effects = [effect for compiled in after for effect in compiled.passes]
            saved = [sum(e.cycles_before - e.cycles_after for e in effects if e.name == name) for name in PASSES]
            ram = " -> ".join(f"{sum(sum(s.image.sizes.values()) for s in group):,}" for group in streams)
            ratios.append(new / old)
            columns = [f"{old:,}", ", ".join(f"{-cycles:,}" for cycles in saved), f"{new:,}", f"{new / old:.3f}", ram]
            yield f"| {model} | {target} | {' | '.join(columns)} | {new_slow / old_slow:.3f} |"
        yield f"| geometric mean | {target} | | | | **{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}** | | |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.passes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="all", help='comma-separated; default: "all"')
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--write", type=Path, help="replace the table of this file")
    options = parser.parse_args()
    lines = [HEADER, "| --- " * (HEADER.count("|") - 1) + "|"]
    for row in list_rows(list(models_named(parser, options.models)), options.targets.split(",")):
        print(row, flush=True)
        lines.append(row)
    if options.write:
        old = options.write.read_text().splitlines()
        first = old.index(HEADER)
        last = next((n for n in range(first, len(old)) if not old[n].startswith("|")), len(old))
        changed = [line for line in lines if not UNCHANGED.search(line)]
        options.write.write_text("\n".join([*old[:first], *changed, *old[last:]]) + "\n")


if __name__ == "__main__":
    main()

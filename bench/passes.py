"""Measure the contribution of each pass over command streams, for the networks of the benchmarks.

``python -m bench.passes [--models NAMES] [--targets NAMES] [--arm-streams FOLDER] [--write docs/stream-passes.md]``

Cycles are estimates of ``ethorch.npu.cycles``. The last column is the ratio if each kernel start costs 300 cycles, which
Vela's formulas ignore. ``--write`` replaces the table of that file, and omits networks that change by less than 15%.
``--arm-streams`` also compares with the streams of the Arm backend, and stores them in a folder (see ``bench.cycles``).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.compile import geometric_mean
from bench.cycles import load_streams
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
COMPARISON_HEADER = "| network | target | ethorch, cycles | Arm backend, cycles | ratio | +300 |"
PASSES_COLUMN = ", ".join(PASSES)
HEADER = f"| network | target | Vela, cycles | {PASSES_COLUMN} | all | ratio | RAM, bytes | +300 |"
KERNEL_START = 300
#: Rows of networks whose cycles change by less than 15%, which ``--write`` omits.
UNCHANGED = re.compile(r"(\|[^|]*){5}\| (0\.(8[5-9]|9\d)\d|1\.000) \|")


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


@dataclass(frozen=True)
class Row:
    """Figures of a network on a target.

    Attributes:
        vela, optimized, arm: Cycles without and with passes, and of the Arm backend, or 0 if it is not compared.
        saved: Cycles that each pass saves.
        ram: Bytes of scratch and staging without and with passes.
        slow: The three cycles if each kernel start costs ``KERNEL_START`` cycles.
    """

    model: str
    target: str
    vela: int
    optimized: int
    arm: int
    saved: tuple[int, ...]
    ram: tuple[int, int]
    slow: tuple[int, int, int]


def measure(model: str, target: str, arm_streams: Path | None) -> Row:
    """Compile a network with and without passes, and with the Arm backend if ``arm_streams`` is set."""
    (before, regions), (after, _) = (compile_streams(model, target, stream) for stream in ("vela", "optimized"))
    arm = _load_arm_streams(model, target, arm_streams) if arm_streams else []
    groups = decode_all(before), decode_all(after), arm
    vela, optimized, arm_cycles = (sum(estimate(stream, regions).cycles for stream in group) for group in groups)
    effects = Effects(kernel_start=KERNEL_START)
    slow = [sum(estimate(stream, regions, effects).cycles for stream in group) for group in groups]
    passes = [effect for compiled in after for effect in compiled.passes]
    saved = tuple(sum(e.cycles_before - e.cycles_after for e in passes if e.name == name) for name in PASSES)
    ram = [sum(sum(stream.image.sizes.values()) for stream in group) for group in groups]
    return Row(model, target, vela, optimized, arm_cycles, saved, (ram[0], ram[1]), (slow[0], slow[1], slow[2]))


def _load_arm_streams(model: str, target: str, folder: Path) -> list[Stream]:
    try:
        return [decode(each.stream) for each in load_streams("arm", model, target, folder)]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return []


def _format_row(row: Row) -> str:
    columns = [f"{row.vela:,}", ", ".join(f"{-cycles:,}" for cycles in row.saved), f"{row.optimized:,}"]
    columns += [f"{row.optimized / row.vela:.3f}", f"{row.ram[0]:,} -> {row.ram[1]:,}"]
    return f"| {row.model} | {row.target} | {' | '.join(columns)} | {row.slow[1] / row.slow[0]:.3f} |"


def _format_mean(target: str, ratios: Sequence[float]) -> str:
    return f"| geometric mean | {target} | | | | **{geometric_mean(ratios):.3f}** | | |"


def list_comparison_rows(rows: Sequence[Row]) -> Iterator[str]:
    """Iterate over the rows of the table that compares with the Arm backend, for networks that it compiles."""
    rows = [row for row in rows if row.arm]
    for row in rows:
        slow = row.slow[1] / row.slow[2]
        yield f"| {row.model} | {row.target} | {row.optimized:,} | {row.arm:,} | {row.optimized / row.arm:.2f} | {slow:.2f} |"
    for target in sorted({row.target for row in rows}):
        ratios = [(row.optimized / row.arm, row.slow[1] / row.slow[2]) for row in rows if row.target == target]
        mean, slow = (geometric_mean(list(column)) for column in zip(*ratios, strict=True))
        yield f"| geometric mean | {target} | | | **{mean:.2f}** | **{slow:.2f}** |"


def _separate(header: str) -> str:
    return "|---" * (header.count("|") - 1) + "|"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.passes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="all", help='comma-separated; default: "all"')
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--arm-streams", type=Path, help="folder of the Arm backend's streams")
    parser.add_argument("--write", type=Path, help="replace the table of this file")
    options = parser.parse_args()
    rows: list[Row] = []
    lines = [HEADER, _separate(HEADER)]
    print(*lines, sep="\n", flush=True)
    for target in options.targets.split(","):
        for model in models_named(parser, options.models):
            rows.append(measure(model, target, options.arm_streams))
            lines.append(_format_row(rows[-1]))
            print(lines[-1], flush=True)
        lines.append(_format_mean(target, [row.optimized / row.vela for row in rows if row.target == target]))
        print(lines[-1], flush=True)
    if options.arm_streams:
        print("", COMPARISON_HEADER, _separate(COMPARISON_HEADER), *list_comparison_rows(rows), sep="\n")
    if options.write:
        old = options.write.read_text().splitlines()
        first = next(n for n, line in enumerate(old) if line.startswith(HEADER[: HEADER.index(PASSES_COLUMN)]))
        last = next((n for n in range(first, len(old)) if not old[n].startswith("|")), len(old))
        changed = [line for line in lines if not UNCHANGED.match(line)]
        options.write.write_text("\n".join([*old[:first], *changed, *old[last:]]) + "\n")


if __name__ == "__main__":
    main()

"""Measure RAM, cycles and bytes with int8 inputs and outputs, weights in SRAM and compressed weights.

``python -m bench.fit [--models a,b] [--targets t,u] [--compress] [--arm] [--layout] [--resume FILE] [--json]``

Each network is quantized once and compiled for each of the ``VARIANTS``: default settings; int8 inputs and outputs; these and no
weights in SRAM; and ``constants="auto"`` within one memory of an Alif E7. All variants run the same input in the simulator, and
their outputs must be equal.

``--compress`` also compresses the weights in one shot, with one recipe for all weights and with one for each weight. The outputs of
these programs must equal those of the TOSA reference model. The networks are untrained, so compression reduces their size less than
for trained weights. SQNR is measured against the uncompressed program.

``--arm`` also compiles with ExecuTorch's Arm backend, and adds a table relative to its cycles and RAM.
``--layout`` also compiles with channels-last inputs and outputs, which ``io_layout="auto"`` selects if they are faster.
``--resume`` appends each row to a file, and measures only rows or columns that the file does not contain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.fx import GraphModule

import ethorch
from bench.compile import DEFAULT_TARGETS, geometric_mean, markdown_row, provenance
from bench.implementation import memory_for, run_in_child
from bench.models import ALL_MODELS, models_named
from ethorch.figures.memory import memory
from ethorch.models.load import UserModel
from ethorch.program.budget_search import search_budgets
from ethorch.program.build import FORWARD, build_program, quantize, single_method
from ethorch.program.facts import TensorInfo
from ethorch.program.program import Program, record_of
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.settings import Settings
from ethorch.tuning import compress

#: RAM of one memory of an Alif Ensemble E7 (SRAM0), the limit of ``constants="auto"``.
_E7_RAM = 4 << 20
#: Program with default settings, and the variants that are compared with it.
DEFAULT, INT8, LEAST, AUTO = VARIANTS = ("default", "int8", "int8, no weights in SRAM", "auto")


@dataclass(frozen=True)
class Variant:
    """Results of one variant of a network.

    Attributes:
        cycles: NPU cycles.
        arena_bytes: Size of the NPU's arena in fast memory.
        ram_bytes: RAM of the whole application.
    """

    cycles: int
    arena_bytes: int
    ram_bytes: int


@dataclass(frozen=True)
class Row:
    """Results of one network on one target.

    Attributes:
        variants: Variant name -> results.
        arm_cycles: Cycles of the Arm backend's program. None if not measured, 0 if compilation failed.
        arm_ram_bytes: RAM of the whole application with that program. None if not measured, 0 if compilation failed.
        laid_cycles: Cycles of the faster layout of inputs and outputs. None if not measured.
        compressed: Recipe -> results with compressed weights.
    """

    model: str
    target: str
    variants: dict[str, Variant]
    arm_cycles: int | None = None
    arm_ram_bytes: int | None = None
    laid_cycles: int | None = None
    compressed: dict[str, Compressed] = field(default_factory=dict)

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Row:
        """Return the row for which ``asdict`` returned ``data``."""
        variants = {name: Variant(**found) for name, found in data.pop("variants").items()}
        compressed = {name: Compressed(**found) for name, found in data.pop("compressed").items()}
        return cls(variants=variants, compressed=compressed, **data)

    @property
    def cycles(self) -> int:
        """The cycles of the program with default settings."""
        return self.variants[DEFAULT].cycles

    def ratio(self, variant: str, what: str) -> float:
        """Return an attribute of a variant, divided by that of the program with default settings."""
        return float(getattr(self.variants[variant], what) / getattr(self.variants[DEFAULT], what))


@dataclass(frozen=True)
class Compressed:
    """Results of one network with compressed weights.

    Attributes:
        cycles: NPU cycles.
        pte_bytes, pte_bytes_before: Size of the .pte with and without compression.
        sqnr_db: SQNR against the uncompressed program, on the calibration samples.
    """

    cycles: int
    pte_bytes: int
    pte_bytes_before: int
    sqnr_db: float


#: Recipes by family for all weights, and the largest loss for the recipe per weight, relative to the uncompressed program.
RECIPES = {"u55": ("32-values", "16-values"), "u85": ("15-values", "2:4", "2:4+15-values")}
CHOSEN, CHOSEN_DB = "each its own", 20.0


def measure_compression(user: UserModel, quantized: GraphModule, plain: Settings) -> dict[str, Compressed]:
    """Compress the network with each recipe, and with one recipe for each weight.

    Raises:
        AssertionError: Outputs differ from those of the reference model.
    """
    samples = list(user.calibration)
    with torch.no_grad():
        before = [quantized(*sample) for sample in samples]
    recipes = {recipe: compress.everywhere(quantized, recipe) for recipe in RECIPES[plain.spec.target.family]}
    recipes[CHOSEN] = compress.plan(quantized, plain.spec, samples, min_sqnr_db=CHOSEN_DB).recipes
    whole = len(build_program(single_method(user), plain, {FORWARD: quantized}).pte)
    found = {}
    for label, chosen in recipes.items():
        made = compress.apply(quantized, chosen, samples)
        program = Program(build_program(single_method(user), plain, {FORWARD: made}))
        assert program.compare(*user.example_inputs).bit_exact, f"{label} on {plain.target}: not the reference model's bits"
        with torch.no_grad():
            sqnr = ethorch.sqnr_db(before, [made(*sample) for sample in samples])
        found[label] = Compressed(program.estimate.npu_cycles or 0, len(program.pte), whole, sqnr)
    return found


def measure(
    model: str,
    target: str,
    *,
    with_compression: bool = False,
    with_arm: bool = False,
    with_layout: bool = False,
    row_so_far: Row | None = None,
) -> Row:
    """Return the row of a network, or ``row_so_far`` with its missing parts added.

    Raises:
        AssertionError: Outputs of two programs differ.
    """
    lacks_arm = with_arm and (row_so_far is None or row_so_far.arm_cycles is None)
    lacks_layout = with_layout and (row_so_far is None or row_so_far.laid_cycles is None)
    lacks_compression = with_compression and (row_so_far is None or not row_so_far.compressed)
    if row_so_far and not (lacks_arm or lacks_layout or lacks_compression):
        return row_so_far
    case = ALL_MODELS[model]
    user = UserModel(case.build(), case.example_inputs(), case.calibration())
    system_config, memory_mode = memory_for(target)
    plain = Settings(target, system_config=system_config, memory_mode=memory_mode)
    quantized = quantize(single_method(user), plain)[FORWARD]
    row = row_so_far or Row(model, target, _variants(user, quantized, plain))
    if lacks_arm:
        cycles, ram = _measure_arm(model, target)
        row = replace(row, arm_cycles=cycles, arm_ram_bytes=ram)
    if lacks_layout:
        row = replace(row, laid_cycles=_laid(user, plain, row.cycles))
    if lacks_compression:
        row = replace(row, compressed=measure_compression(user, quantized, plain))
    return row


def _variants(user: UserModel, quantized: GraphModule, plain: Settings) -> dict[str, Variant]:
    settings = {
        DEFAULT: plain,
        INT8: plain.with_(io="int8"),
        LEAST: plain.with_(io="int8", constants=0),
        AUTO: Settings(str(plain.target), system_config=plain.system_config, constants="auto", ram=_E7_RAM),
    }
    programs = {name: _program(user, quantized, chosen) for name, chosen in settings.items()}
    wanted = _outputs(programs[DEFAULT], user)
    for name, program in programs.items():
        found = _outputs(program, user)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True)), f"{plain.target}, {name}: other bits"
    return {name: Variant(made.estimate.npu_cycles or 0, _arena(made), made.memory.ram_bytes) for name, made in programs.items()}


def _program(user: UserModel, quantized: GraphModule, settings: Settings) -> Program:
    """Compile the program with these settings, and search for ``auto`` and budgets."""
    return Program(search_budgets(settings, lambda tried, _: build_program(single_method(user), tried, {FORWARD: quantized}), user))


def _outputs(program: Program, user: UserModel) -> list[torch.Tensor]:
    """Run the example inputs in the simulator, and return the dequantized outputs."""
    inputs = [_codes(x, info) for x, info in zip(user.example_inputs, program.inputs, strict=True)]
    outputs = torch.utils._pytree.tree_leaves(program(*inputs))
    return [_floats(y, info) for y, info in zip(outputs, program.outputs, strict=True)]


def _codes(x: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    codes = info.codes
    if codes is None:
        return x
    return (torch.round(x * (1.0 / codes.scale)) + codes.zero_point).clamp(-128, 127).to(torch.int8)


def _floats(y: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    codes = info.codes
    return y if codes is None else (y.float() - codes.zero_point) * codes.scale


def _measure_arm(model: str, target: str) -> tuple[int, int]:
    """Return the cycles and RAM of the Arm backend's program, or zeros if compilation failed."""
    with TemporaryDirectory() as folder:
        arguments = ["--impl", "arm", "--model", model, "--target", target, "--save", folder]
        record = run_in_child("bench.implementation", arguments)
        if "error" in record:
            return 0, 0
        (pte,) = Path(folder).glob("*.pte")
        system_config, memory_mode = memory_for(target)
        spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
        return int(record["vela"]["total_cycles"]), memory(pte, spec=spec).ram_bytes


def _laid(user: UserModel, plain: Settings, cycles: int) -> int:
    """Return the cycles with channels-last inputs and outputs if they have channels and this is faster, or ``cycles``."""
    tensors = (*user.example_inputs, *torch.utils._pytree.tree_leaves(user.module(*user.example_inputs)))
    if not any(x.dim() in (4, 5) for x in tensors):
        return cycles
    settings = plain.with_(io_layout="nhwc")
    return min(cycles, build_program(single_method(user), settings).total_cycles or cycles)


def _arena(program: Program) -> int:
    build = record_of(program).build
    assert build is not None
    return max((d.compiled.scratch_fast_bytes or d.compiled.scratch_bytes for d in build.delegates), default=0)


def table(rows: Sequence[Row], target: str) -> str:
    """Format a Markdown table of RAM and cycles with geometric means of the ratios."""
    head = ["model", "arena, KiB", *(f"RAM, KiB: {name}" for name in VARIANTS), "cycles: no weights in SRAM", "cycles: auto"]
    lines = [f"### {target}, {', '.join(memory_for(target))}", "", markdown_row(head), markdown_row(["---"] * len(head))]
    mine = [row for row in rows if row.target == target]
    for row in mine:
        ram = [f"{row.variants[name].ram_bytes / 1024:.0f} ({row.ratio(name, 'ram_bytes'):.2f})" for name in VARIANTS]
        cycles = [f"{row.ratio(name, 'cycles'):.2f}" for name in (LEAST, AUTO)]
        lines.append(markdown_row([row.model, f"{row.variants[DEFAULT].arena_bytes / 1024:.0f}", *ram, *cycles]))
    shown = [(name, "ram_bytes") for name in VARIANTS] + [(name, "cycles") for name in (LEAST, AUTO)]
    means = [f"**{geometric_mean([row.ratio(name, what) for row in mine]):.2f}**" for name, what in shown]
    return "\n".join([*lines, markdown_row(["geometric mean of ratios", "", *means])])


def arm_table(rows: Sequence[Row], target: str) -> str:
    """Format a Markdown table of cycles and RAM relative to the Arm backend."""
    shown = [*((name, "cycles") for name in (DEFAULT, LEAST, AUTO)), *((name, "ram_bytes") for name in (DEFAULT, INT8, LEAST))]
    head = ["model", "cycles: channels last where faster", *(f"{what.split('_')[0]}: {name}" for name, what in shown)]
    lines = [f"{target}, divided by the Arm backend's", "", markdown_row(head), markdown_row(["---"] * len(head))]
    ratios = []
    for row in (row for row in rows if row.target == target and row.arm_cycles):
        arm = {"cycles": row.arm_cycles or 1, "ram_bytes": row.arm_ram_bytes or 1}
        laid = (row.cycles if row.laid_cycles is None else row.laid_cycles) / arm["cycles"]
        ratios.append((laid, *(getattr(row.variants[name], what) / arm[what] for name, what in shown)))
        lines.append(markdown_row([row.model, *(f"{ratio:.2f}" for ratio in ratios[-1])]))
    means = [f"**{geometric_mean(list(column)):.2f}**" for column in zip(*ratios, strict=True)]
    return "\n".join([*lines, markdown_row(["geometric mean", *means])])


def compression_table(rows: Sequence[Row], target: str) -> str:
    """Format a Markdown table of cycles and .pte bytes by compression, relative to the uncompressed program."""
    mine = [row for row in rows if row.target == target and row.compressed]
    labels = list(mine[0].compressed)
    head = ["model", *(f"{label}: cycles, .pte, SQNR" for label in labels), "cycles of the Arm backend's: as is, each its own"]
    lines = [markdown_row(head), markdown_row(["---"] * len(head))]
    for row in mine:
        cells = [
            f"{found.cycles / row.cycles:.3f}, {found.pte_bytes / found.pte_bytes_before:.2f}, {found.sqnr_db:.1f} dB"
            for found in (row.compressed[label] for label in labels)
        ]
        own = row.compressed[CHOSEN].cycles
        arm = "" if not row.arm_cycles else f"{row.cycles / row.arm_cycles:.2f}, {own / row.arm_cycles:.2f}"
        lines.append(markdown_row([row.model, *cells, arm]))
    means = [
        f"**{geometric_mean([row.compressed[label].cycles / row.cycles for row in mine]):.3f}, "
        f"{geometric_mean([row.compressed[label].pte_bytes / row.compressed[label].pte_bytes_before for row in mine]):.2f}**"
        for label in labels
    ]
    known = [(row, row.arm_cycles) for row in mine if row.arm_cycles]
    both = [geometric_mean([cycles(row) / arm for row, arm in known]) for cycles in (_as_is, _chosen_cycles)] if known else []
    lines.append(markdown_row(["geometric mean", *means, ", ".join(f"**{mean:.2f}**" for mean in both)]))
    return "\n".join(lines)


def _as_is(row: Row) -> int:
    return row.cycles


def _chosen_cycles(row: Row) -> int:
    return row.compressed[CHOSEN].cycles


def _read_rows(file: Path | None) -> dict[tuple[str, str], Row]:
    """Read the rows of the file by target and model. A later row replaces an earlier one."""
    lines = file.read_text().splitlines() if file and file.exists() else []
    rows = [Row.of_data(json.loads(line)) for line in lines]
    return {(row.target, row.model): row for row in rows}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help='comma-separated, or "all"; default: the first seven')
    parser.add_argument("--targets", default=",".join(DEFAULT_TARGETS), help="comma-separated")
    parser.add_argument("--compress", action="store_true", help="also compress weights")
    parser.add_argument("--arm", action="store_true", help="also compile with the Arm backend")
    parser.add_argument("--layout", action="store_true", help="also compile with channels-last inputs and outputs")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="file of finished rows; continue from it")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of tables")
    options = parser.parse_args(arguments)
    models, targets = models_named(parser, options.models), options.targets.split(",")
    torch.set_num_threads(1)
    kept = _read_rows(options.resume)
    rows = []
    for target in targets:
        for model in models:
            print(f"{target} {model} ...", file=sys.stderr, flush=True)
            try:
                chosen = {"with_compression": options.compress, "with_arm": options.arm, "with_layout": options.layout}
                rows.append(measure(model, target, row_so_far=kept.get((target, model)), **chosen))
            except ethorch.EthorchError as error:
                print(f"{target} {model}: {error}", file=sys.stderr)
                continue
            if options.resume and rows[-1] is not kept.get((target, model)):
                with options.resume.open("a") as file:
                    file.write(json.dumps(asdict(rows[-1])) + "\n")
    if options.json:
        json.dump({"provenance": provenance(), "rows": [asdict(row) for row in rows]}, sys.stdout, indent=1)
        print()
        return 0
    print(provenance())
    for target in targets:
        print(f"\n{table(rows, target)}")
        if options.arm and any(row.target == target and row.arm_cycles for row in rows):
            print(f"\n{arm_table(rows, target)}")
        if options.compress and any(row.target == target for row in rows):
            print(f"\n{compression_table(rows, target)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

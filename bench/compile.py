"""Compare the programs of both implementations: estimated cycles, memory and compile time.

``python -m bench.compile [--models a,b] [--targets t,u] [--json]``

A cell contains "ethorch / Arm backend (ratio)". Smaller is better in every column except SQNR. The last row contains geometric
means of the ratios over the networks that both implementations compile. Cycles are Vela's; ``bench.passes`` includes stream passes.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.implementation import IMPLEMENTATIONS, memory_for, run_in_child

Record = dict[str, Any]
DEFAULT_TARGETS = ("ethos-u55-128", "ethos-u85-256")


@dataclass(frozen=True)
class Column:
    """A quantity in the table, with its key in a record and its format."""

    title: str
    value: Callable[[Record], float]
    text: Callable[[float], str]


def _count(value: float) -> str:
    """Format a number, e.g. ``1.235 M`` for 1234567."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.0f}"


def _kib(value: float) -> str:
    return f"{value / 1024:.4g}"


def to_pte_seconds(record: Record) -> float:
    """Return the seconds from the result of ``convert_pt2e`` to the bytes of a .pte."""
    seconds = record["seconds"]
    if "build" in seconds:
        return float(seconds["build"])
    return float(sum(seconds[step] for step in ("reexport", "to_edge_transform_and_lower", "to_executorch")))


COLUMNS = (
    Column("total cycles", lambda r: r["vela"]["total_cycles"], _count),
    Column("NPU cycles", lambda r: r["vela"]["npu_cycles"], _count),
    Column("SRAM, KiB", lambda r: r["vela"]["sram_bytes"], _kib),
    Column("weights, KiB", lambda r: r["vela"]["read_only_bytes"], _kib),
    Column("commands, KiB", lambda r: r["vela"]["command_bytes"], _kib),
    Column("`preprocess`, s", lambda r: r["preprocess_seconds"], "{:.2f}".format),
    Column("`to_edge_transform_and_lower`, s", lambda r: r["seconds"]["to_edge_transform_and_lower"], "{:.2f}".format),
    Column("quantize, s", lambda r: sum(r["seconds"][s] for s in ("prepare", "convert", "reexport")), "{:.2f}".format),
    Column("converted graph to .pte, s", lambda r: to_pte_seconds(r), "{:.2f}".format),
    Column("peak memory, MiB", lambda r: max(r["peak_bytes"].values()) / 2**20, "{:.0f}".format),
)


def measure(
    models: Sequence[str],
    targets: Sequence[str],
    implementations: Sequence[str] = IMPLEMENTATIONS,
    earlier: Sequence[Record] = (),
) -> list[Record]:
    """Return a record for each model, target and implementation, measured in a new process or copied from ``earlier``."""
    known = {(r["model"], r["target"], r["impl"]): r for r in earlier}
    records = []
    for target in targets:
        for model in models:
            for impl in implementations:
                record = known.get((model, target, impl))
                if record is None:
                    print(f"{target} {model} {impl} ...", file=sys.stderr, flush=True)
                    arguments = ["--impl", impl, "--model", model, "--target", target]
                    record = {
                        "model": model,
                        "target": target,
                        "impl": impl,
                        **run_in_child("bench.implementation", arguments),
                    }
                records.append(record)
    return records


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, or nan if ``values`` is empty."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def ratios(records: Sequence[Record], target: str, column: Column) -> dict[str, float]:
    """Return model -> ethorch / Arm backend, for the models that both implementations compiled."""
    found = {(r["model"], r["impl"]): r for r in records if r["target"] == target and "error" not in r}
    return {
        model: column.value(found[model, "ethorch"]) / column.value(arm)
        for (model, impl), arm in found.items()
        if impl == "arm" and (model, "ethorch") in found and column.value(arm) > 0
    }


def _cell(column: Column, ethorch: Record | None, arm: Record | None) -> str:
    both = [record for record in (ethorch, arm) if record is not None and "error" not in record]
    texts = [
        "failed" if record is not None and "error" in record else column.text(column.value(record)) if record else "-"
        for record in (ethorch, arm)
    ]
    if len(both) == 2 and column.value(both[1]) > 0:
        return f"{texts[0]} / {texts[1]} ({column.value(both[0]) / column.value(both[1]):.2f})"
    return " / ".join(texts)


def _coverage(record: Record | None) -> str:
    if record is None:
        return "-"
    if "error" in record:
        return "failed"
    return f"{record['delegates']} + {len(record['cpu_operators'])}"


def table(records: Sequence[Record], target: str) -> str:
    """Format a Markdown table for one target. The last row contains geometric means."""
    by_key = {(r["model"], r["impl"]): r for r in records if r["target"] == target}
    models = list(dict.fromkeys(model for model, _ in by_key))
    system_config, memory_mode = memory_for(target)
    head = ["model", "delegates + CPU operators", "SQNR, dB", *(column.title for column in COLUMNS)]
    lines = [f"### {target}, {system_config}, {memory_mode}", "", markdown_row(head), markdown_row(["---"] * len(head))]
    for model in models:
        ethorch, arm = by_key.get((model, "ethorch")), by_key.get((model, "arm"))
        sqnr = [f"{r['sqnr_db']:.1f}" if r and "error" not in r else "-" for r in (ethorch, arm)]
        cells = [_cell(column, ethorch, arm) for column in COLUMNS]
        lines.append(markdown_row([model, f"{_coverage(ethorch)} / {_coverage(arm)}", " / ".join(sqnr), *cells]))
    means = [geometric_mean(list(ratios(records, target, column).values())) for column in COLUMNS]
    lines.append(markdown_row(["geometric mean of ratios", "", "", *("" if math.isnan(m) else f"**{m:.2f}**" for m in means)]))
    failures = [
        f"- {r['impl']}, {r['model']}: {r['error']['type']} in {r['error']['step']}: "
        + (r["error"]["message"].strip().splitlines() or [""])[-1][:200]
        for r in by_key.values()
        if "error" in r
    ]
    left = [
        f"- {r['impl']}, {r['model']}: on the CPU: {', '.join(r['cpu_operators'])}"
        for r in by_key.values()
        if "error" not in r and r["cpu_operators"]
    ]
    return "\n".join([*lines, *([""] if failures or left else []), *failures, *left])


def markdown_row(cells: Sequence[str]) -> str:
    """Format a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def provenance() -> str:
    """Return one line with the date, versions and machine of a measurement."""
    packages = ("torch", "torchao", "executorch", "ethos-u-vela", "tosa-tools")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{date.today().isoformat()}; {versions}; CPython {platform.python_version()}, {platform.machine()}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help='comma-separated, "all" or "various"; default: the first seven')
    parser.add_argument("--targets", default=",".join(DEFAULT_TARGETS), help="comma-separated")
    parser.add_argument("--impls", default=",".join(IMPLEMENTATIONS), help="comma-separated: ethorch, arm")
    parser.add_argument("--baseline", type=Path, help="earlier --json output with the records of the Arm backend")
    parser.add_argument("--json", action="store_true", help="print the records as JSON instead of tables")
    options = parser.parse_args(arguments)

    from bench.models import VARIOUS, models_named

    models = models_named(parser, options.models, VARIOUS)
    earlier = []
    if options.baseline:
        earlier = [r for r in json.loads(options.baseline.read_text())["records"] if r["impl"] == "arm"]
    targets = options.targets.split(",")
    records = measure(models, targets, options.impls.split(","), earlier)
    if options.json:
        json.dump({"provenance": provenance(), "records": records}, sys.stdout, indent=1)
        print()
        return 0
    print(provenance())
    for target in targets:
        print(f"\n{table(records, target)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write docs/zoo.md from the recorded runs: ``python -m bench.zoo.page [FILE.jsonl ...]``.

The files are first merged into ``bench/zoo/results.jsonl``. A later run of a network replaces an earlier run.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from bench.zoo.__main__ import TARGETS, Record, read

RESULTS = Path(__file__).resolve().parent / "results.jsonl"
PAGE = RESULTS.parent.parent.parent / "docs" / "zoo.md"
LIBRARIES = {
    "timm": "timm",
    "hf": "transformers",
    "torchvision": "torchvision",
    "drawn/diffusers": "diffusers, drawn",
    "drawn/smp": "segmentation-models-pytorch, drawn",
    "drawn/pyg": "torch_geometric, drawn",
    "drawn/ultralytics": "ultralytics, drawn",
    "drawn/transformers": "transformers, drawn",
}
_HEAD = """# Public networks
<!-- Written by `python -m bench.zoo.page` from bench/zoo/results.jsonl. -->

This page shows which public networks compile to an NPU, into how many delegates, and how close their results are to the float
model. `python -m bench.zoo` builds them with random weights, small configurations and small inputs, quantizes them with four
calibration samples, compiles them, and runs the `.pte` in ExecuTorch's runtime on the simulator.

A run is *byte-equal* if every byte of every delegate equals the TOSA reference model's. *SQNR* is the median over the networks,
in dB against the float model. Random deep networks amplify noise more than trained ones, so these figures compare ways to
compute, not networks. Fifty networks were drawn from the class lists of five libraries with a fixed seed
(`bench/zoo/draw.py`) before the first of them was compiled.
"""
_REASONS = """
Operators stay on the CPU for these reasons:

- The U55 has no GATHER: embeddings, `gather` and `index` with computed indices, `grid_sample` with a computed grid.
- TOSA has no operator for `topk` of more than eight, `nonzero`, and arithmetic in int64 (`cumsum` of positions, int64 boxes).
- The weights of a convolution are computed at run time.
"""


def library_of(network: str) -> str:
    """Return the label of the library that a network comes from."""
    parts = network.split("/")
    return LIBRARIES.get("/".join(parts[:2]) if parts[0] == "drawn" else parts[0], "networks of `bench.accuracy`")


def page(records: Iterable[Record]) -> str:
    """Return the page as Markdown."""
    runs = list({(r["network"], r["target"], r["scheme"]): r for r in records}.values())
    lines = [_HEAD, *_libraries(runs), "", "## Several delegates", _REASONS, *_split(runs)]
    failures = [run for run in runs if run["status"] != "ok"]
    if failures:
        lines += ["", "## Failures", "", "| network | target | reason |", "|---|---|---|"]
        lines += [f"| {run['network']} | {run['target']} | {run.get('error', run['status'])} |" for run in failures]
    return "\n".join(lines) + "\n"


def _libraries(runs: Sequence[Record]) -> list[str]:
    heads = ["library", "networks", "runs", "byte-equal", "one delegate", "SQNR, int8", "SQNR, a16w8", ".pte - fake-quantized"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    groups: dict[str, list[Record]] = {label: [] for label in dict.fromkeys((*LIBRARIES.values(), "networks of `bench.accuracy`"))}
    for run in runs:
        groups[library_of(run["network"])].append(run)
    for label, group in (*groups.items(), ("**all**", list(runs))):
        if not group:
            continue
        finished = [run for run in group if run["status"] == "ok"]
        differences = [run["pte_db"] - run["fake_db"] for run in finished if None not in (run.get("pte_db"), run.get("fake_db"))]
        cells = [
            label,
            len({run["network"] for run in group}),
            len(group),
            len(finished),
            sum(run.get("delegates") == 1 for run in finished),
            *(_median([run["pte_db"] for run in finished if run["scheme"] == s and run.get("pte_db")]) for s in ("int8", "a16w8")),
            _median(differences, "+.1f"),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _median(figures: Sequence[float], form: str = ".1f") -> str:
    return format(median(figures), form) if figures else ""


def _split(runs: Sequence[Record]) -> list[str]:
    lines = ["| network | delegates, U55-128 | delegates, U85-256 | operators on the CPU |", "|---|---:|---:|---|"]
    for network in dict.fromkeys(run["network"] for run in runs if run.get("delegates", 1) != 1):
        own = [run for run in runs if run["network"] == network and run["status"] == "ok"]
        counts = [{run["delegates"] for run in own if run["target"] == target} for target in TARGETS]
        operators: Counter[str] = Counter()
        for run in own:
            operators |= Counter(name.split(" ")[0].split(".")[1] for name in run.get("cpu", ()))
        cells = [network, *(" or ".join(map(str, sorted(count))) or "-" for count in counts), ", ".join(operators)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(files: Sequence[str]) -> int:
    """Merge the files into the recorded runs and write the page."""
    records = read(RESULTS)
    if files:
        merged = {(r["network"], r["target"], r["scheme"]): r for r in [*records, *(r for file in files for r in read(Path(file)))]}
        keys = ("network", "target", "scheme", "status", "error", "fake_db", "pte_db", "delegates", "cpu")
        records = [{key: record[key] for key in keys if key in record} for record in merged.values()]
        RESULTS.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    PAGE.write_text(page(records), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

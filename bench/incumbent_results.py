"""Summarize records of the Arm backend's tests and write docs/arm-tests.md.

``python -m bench.incumbent_results FILE.jsonl ...`` writes the summary bench/incumbent_results.json and the page. The files replace
the stored results of the folders that they contain; the results of other folders are kept.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
SUMMARY = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "arm-tests.md"


def read(path: Path) -> list[Record]:
    """Return the last record of each case and target in a file, including cases that ended their process."""
    return read_states(path)[1]


def read_states(path: Path) -> tuple[set[str], list[Record]]:
    """Return the finished or aborted cases of a file, and their records."""
    records: dict[tuple[str, str], Record] = {}
    states: dict[str, str] = {}
    last = ""
    for line in _lines(path) if path.is_file() else ():
        if "state" not in line:
            records[line["case"], line["target"]] = line
            continue
        if line["state"] == "started" and states.get(last) == "started":
            states[last] = "ended"
        last = line["case"]
        states[last] = line["state"]
    if states.get(last) == "started":
        states[last] = "ended"
    measured = {case for case, _ in records}
    for case, state in states.items():
        if state == "ended" and case not in measured:
            records[case, "all"] = {"case": case, "target": "all", "status": "failed: process", "error": "ended its process"}
    return set(states) | measured, list(records.values())


def _lines(path: Path) -> Iterator[Record]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def needs_comparison(record: Record) -> bool:
    """Return True if the Arm backend could delegate more of the case, but has not compiled the case yet."""
    return not record.get("arm") and bool(record.get("cpu") or _is_without_result(record))


def _is_without_result(record: Record) -> bool:
    """Return True if compilation or the program failed. A program that is too slow to be compared has a result."""
    return record["status"] not in ("ok", "differs", "not run", "too long: run", "too long: reference")


def operators_on_cpu(record: Record) -> int:
    """Return the number of CPU operators of a case, excluding writes to inputs that the test changes in place.

    The Arm backend's programs leave such inputs unchanged.
    """
    is_written = any("graph.written_back" in reason for reason in record.get("reasons", ()))
    left_out = ("aten::copy_", "aten::copy.out") if is_written else ()
    return sum(count for name, count in record.get("cpu", {}).items() if name not in left_out)


def has_more_on_cpu(record: Record) -> bool:
    """Return True if the Arm backend compiled the case and left fewer operators on the CPU."""
    arm = record.get("arm") or {}
    if _is_without_result(record):
        return "cpu" in arm
    return "cpu" in arm and operators_on_cpu(record) > sum(arm["cpu"].values())


_TARGETS = "[targets](targets.md): Vela's SUPPORTED_OPS and the NPU's registers"
#: Prefixes of reasons that are not limits of a target, with their source.
_SOURCES = {
    "quantize.left_out": "the test does not quantize it",
    "graph.input_not_quantized": "the test does not quantize the producer of its input",
    "graph.output_not_quantized": "the test does not quantize the reader of its result",
    "graph.written_back": "the test changes an input in place, and ExecuTorch's runtime owns the inputs",
    "graph.int64": "TOSA 1.0: no operator of these profiles computes in int64",
    "graph.int32": "[targets](targets.md): activations that the family supports",
    "graph.plain_integers": "TOSA 1.0: the operator has no integer form",
    "grid_sampler.computed": f"{_TARGETS}; a computed grid needs GATHER",
    "operator.unknown": "TOSA 1.0 has no such operator: topk, nonzero, int64 ranges",
    "calibration.nan": "the float module returns NaN for the test's input",
    "calibration.": "the test's samples",
    "submodules.": "the test's samples",
}


def source_of(id: str) -> str:
    """Return the source of a Reason: a row of the targets page, TOSA, PyTorch or the test itself."""
    found = next((source for start, source in _SOURCES.items() if id.startswith(start)), None)
    if found is None and id.partition(".")[0].isupper():
        return _TARGETS
    return found or "[messages](reference/messages.md)"


def summarize(records: Sequence[Record]) -> Record:
    """Return counts by folder and target, Reasons with their cases, less delegated cases, and cases that did not run."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    reasons: dict[tuple[str, str, str], Counter[str]] = {}
    less, failures = [], []
    for record in records:
        folder = record["case"].partition("/")[0]
        status, target = record["status"], record["target"]
        if status.startswith(("not run", "failed", "too long")):
            failures.append([record["case"], target, status, _last_line(record.get("error", ""))])
            if target == "all":
                continue
        counts = groups.setdefault((folder, target), Counter())
        counts["cases"] += 1
        counts["run"] += "differing" in record
        counts["equal"] += record.get("differing") == 0
        counts["bytes"] += record.get("bytes", 0)
        counts["fully delegated"] += "differing" in record and not operators_on_cpu(record)
        is_less = has_more_on_cpu(record)
        counts["less delegated"] += is_less
        ids = {reason.rpartition("(")[2].rstrip(")") for reason in record.get("reasons", ())}
        if status.startswith("refused"):
            ids = {record["error"].rpartition("[")[2].rstrip("]")}
        for id in ids:
            row = reasons.setdefault((folder, target, id), Counter())
            row["cases"] += 1
            row["less delegated"] += is_less
        if is_less:
            arm = record["arm"]
            decibels = [record.get("sqnr_db"), arm.get("sqnr_db")]
            less.append([record["case"], target, sorted(ids), *decibels, record.get("expected_failure", "")])
    return {
        "groups": sorted(([*key, dict(value)] for key, value in groups.items()), key=str),
        "reasons": sorted(([*key, dict(value)] for key, value in reasons.items()), key=str),
        "less": sorted(less, key=str),
        "failures": sorted(failures, key=str),
    }


def merge(stored: Record, summary: Record) -> Record:
    """Return ``stored``, with the folders of ``summary`` replaced."""
    folders = {row[0].partition("/")[0] for rows in summary.values() for row in rows}
    merged = {}
    for kind, rows in summary.items():
        kept = [row for row in stored.get(kind, ()) if row[0].partition("/")[0] not in folders]
        merged[kind] = sorted(kept + rows, key=str)
    return merged


_HEAD = """# The Arm backend's own tests
<!-- Written by `python -m bench.incumbent_results FILE.jsonl ...`; a test compares it with bench/incumbent_results.json. -->

This page shows which tests of ExecuTorch's Arm backend run on each NPU, and the reasons for operators on the CPU. Modules
and inputs are those of executorch 1.5.1, with random weights instead of downloads. `python -m bench.incumbent_tests -o FILE.jsonl`
compiles them with both implementations, runs ethorch's programs in the simulator and compares every byte of every delegate with the
TOSA reference model.

At most 16 cases of each test function run: those of operators on four targets, all others on two. Two model tests of Llama are
missing because they need a checkpoint. On Ethos-U85, the test of Stable Diffusion's transformer is missing because Vela exceeded
the time limit. The Arm backend did not compile the model tests of T5, of that transformer and, for Ethos-U85, of CLIP.

- **run**: compiled and run; **equal**: all bytes of all delegates are those of the reference model.
- **less delegated**: the Arm backend compiled the case and left fewer operators on the CPU. It compiles only the cases that ethorch
  does not fully delegate.
- Operators that write to an input in place do not count, because the Arm backend's programs leave that input unchanged.
"""


def page(summary: Record) -> str:
    """Return the Markdown page of a summary."""
    columns = ("cases", "run", "equal", "bytes", "fully delegated", "less delegated")
    lines = [_HEAD, f"| folder | target | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for folder, target, counts in summary["groups"]:
        lines.append(f"| {folder} | {target} | {' | '.join(f'{counts.get(c, 0):,}' for c in columns)} |")
    lines += ["", "## Reasons", "", "| reason | source | folders | targets | cases | less delegated |", "|---|---|---|---|---|---|"]
    reasons: dict[str, list[tuple[str, str, Record]]] = {}
    for folder, target, id, counts in summary["reasons"]:
        reasons.setdefault(id, []).append((folder, target, counts))
    for id, rows in sorted(reasons.items()):
        folders = ", ".join(sorted({folder for folder, _, _ in rows}))
        targets = ", ".join(sorted({target for _, target, _ in rows}))
        cases, less = (sum(row[2].get(key, 0) for row in rows) for key in ("cases", "less delegated"))
        lines.append(f"| `{id}` | {source_of(id)} | {folders} | {targets} | {cases:,} | {less} |")
    lines += ["", "## Less delegated", "", "SQNR in dB against the float module: ethorch / Arm backend.", ""]
    for case, target, ids, own, arm, expected in summary["less"]:
        note = f"; the test is an expected failure ({expected})" if expected else ""
        lines.append(f"- {case}, {target}: {', '.join(f'`{id}`' for id in ids)}; {_decibels(own)} / {_decibels(arm)} dB{note}")
    lines += [] if summary["less"] else ["None."]
    lines += ["", "## Not run", ""]
    failures: dict[tuple[str, str], list[str]] = {}
    for case, _, status, error in summary["failures"]:
        failures.setdefault((case.partition("[")[0], status), []).append(error)
    for (function, status), errors in failures.items():
        count = f" ({len(errors)} runs)" if len(errors) > 1 else ""
        text = f" `{errors[0].replace('`', '')}`" if errors[0] else ""
        lines.append(f"- {function}{count}: {status}.{text}")
    lines += [] if summary["failures"] else ["None."]
    return "\n".join(lines) + "\n"


def _last_line(error: str) -> str:
    """Return the last line of an error, shortened, with paths reduced to file names."""
    line = " ".join("".join(error.strip().splitlines()[-1:]).split())
    return re.sub(r"(?:/[\w.+-]+)+/(?=[\w.+-])", "", line)[:160]


def _decibels(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def main(arguments: Sequence[str]) -> int:
    records = [record for path in arguments for record in read(Path(path))]
    latest = {(record["case"], record["target"]): record for record in records}
    stored = json.loads(SUMMARY.read_text()) if SUMMARY.is_file() else {}
    SUMMARY.write_text(json.dumps(merge(stored, summarize(list(latest.values()))), indent=0) + "\n")
    PAGE.write_text(page(json.loads(SUMMARY.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

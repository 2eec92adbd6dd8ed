"""Compile and run the networks of the zoo.

``python -m bench.zoo [--networks timm/,hf/bert] [--targets t,u] [--schemes int8,a16w8] [-o FILE.jsonl] [--table FILE ...]``

Each network runs in a process of its own, with a limit of time and memory. Each run appends a line of JSON to the file. Runs that
the file already contains are skipped, so that a list can be processed in parts. ``--table`` prints the Markdown table of such
files. A later line of the same run replaces an earlier one. The zoo needs timm and transformers, installed without their
dependencies, because pip would replace torch:
``pip install --no-deps timm transformers tokenizers regex huggingface_hub safetensors``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
TARGETS = ("ethos-u55-128", "ethos-u85-256")
SCHEMES = ("int8", "a16w8")


def cases() -> dict[str, Any]:
    """Return all networks by name."""
    from bench.zoo import classes, drawn, families, images, recent, sequences, several

    files = (images, classes, sequences, families, several, recent, drawn)
    return {case.name: case for file in files for case in file.CASES}


def read(path: Path) -> list[Record]:
    """Read the records of a file; return an empty list if the file does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def table(records: Sequence[Record]) -> str:
    """Format a Markdown table: a line of totals, a row for each network, and a line for each failed run.

    If a run has several records, the last record is used.
    """
    records = list({(r["network"], r["target"], r["scheme"]): r for r in records}.values())
    counts = Counter(record["status"] for record in records)
    networks = list(dict.fromkeys(record["network"] for record in records))
    targets, schemes = ([*dict.fromkeys(record[key] for record in records)] for key in ("target", "scheme"))
    one = sum(record.get("delegates") == 1 for record in records)
    heads = [
        "network",
        *(f"delegates, {t}" for t in targets),
        *(f"on the CPU, {t}" for t in targets),
        *(f"{s}, dB" for s in schemes),
    ]
    lines = [
        f"{len(networks)} networks, {len(records)} runs: {', '.join(f'{n} {status}' for status, n in counts.most_common())}; "
        f"{one} in one delegate.",
        "",
        f"| {' | '.join(heads)} |",
        "|" + "---|" * len(heads),
    ]
    runs = {(r["network"], r["target"], r["scheme"]): r for r in records}
    for network in networks:
        found = [[runs.get((network, target, scheme), {}) for scheme in schemes] for target in targets]
        delegates = [_once(str(r.get("delegates", "-")) for r in of_target) for of_target in found]
        left = [_once(_operators(r.get("cpu", [])) for r in of_target) for of_target in found]
        accuracy = [_once(_decibels(of_target[k]) for of_target in found) for k in range(len(schemes))]
        lines.append(f"| {' | '.join([network, *delegates, *left, *accuracy])} |")
    failed = [record for record in records if record["status"] != "ok"]
    lines += [
        "",
        *(f"- {r['network']}, {r['target']}, {r['scheme']}: {r['status']}. {_short(r.get('error', ''), 300)}" for r in failed),
    ]
    return "\n".join(lines).rstrip()


def _once(texts: Iterable[str]) -> str:
    """Join the distinct texts with semicolons."""
    return "; ".join(dict.fromkeys(texts))


def _operators(names: Sequence[str]) -> str:
    """Count operators without namespace and overload, e.g. ``2 embedding, to``."""
    counts = Counter(name.split(" ")[0].split(".")[1] for name in names)
    return ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.items())


def _decibels(record: Record) -> str:
    """Format the SQNR of the fake-quantized model and of the .pte against float, e.g. ``30.1 / 30.0``."""
    return " / ".join(f"{record[key]:.1f}" if record.get(key) is not None else "-" for key in ("fake_db", "pte_db"))


def _short(text: str, length: int = 100) -> str:
    first = " ".join(text.split()).replace("|", "/")
    return first if len(first) <= length else first[: length - 3] + "..."


def _child(name: str, targets: list[str], schemes: list[str], calibration: int, inputs: int) -> None:
    from bench.zoo.run import run

    for record in run(cases()[name], targets, schemes, calibration, inputs):
        print(json.dumps(record), flush=True)


def missing(
    records: Iterable[Record], name: str, targets: Sequence[str], schemes: Sequence[str]
) -> list[tuple[list[str], list[str]]]:
    """Return the missing runs of a network as few (targets, schemes) pairs."""
    have = {(r["target"], r["scheme"]) for r in records if r["network"] == name}
    groups: dict[tuple[str, ...], list[str]] = {}
    for scheme in schemes:
        groups.setdefault(tuple(target for target in targets if (target, scheme) not in have), []).append(scheme)
    return [(list(wanted), group) for wanted, group in groups.items() if wanted]


def _run_in_child(name: str, targets: list[str], schemes: list[str], arguments: argparse.Namespace, out: Path) -> list[Record]:
    """Run a network in a child process and append its records to the file. Runs that do not finish are recorded as failures."""
    command = [sys.executable, "-m", "bench.zoo", "--child", name, "--targets", ",".join(targets), "--schemes", ",".join(schemes)]
    command += ["--calibration", str(arguments.calibration), "--inputs", str(arguments.inputs)]
    limit = int(arguments.memory * 2**30)
    wanted = [(name, t, s) for s in schemes for t in targets]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=arguments.timeout * len(wanted), check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)), env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        text, why = child.stdout, child.stderr.strip()[-500:] or f"exit code {child.returncode}"
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        why = f"more than {arguments.timeout * len(wanted)} s"
    records = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    done = {(r["network"], r["target"], r["scheme"]) for r in records}
    for network, target, scheme in wanted:
        if (network, target, scheme) not in done:
            records.append({"network": network, "target": target, "scheme": scheme, "status": "failed: process", "error": why})
    with out.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return records


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("bench.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="", help="comma-separated names or prefixes; default: all")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--calibration", type=int, default=4, help="number of calibration samples")
    parser.add_argument("--inputs", type=int, default=24, help="number of inputs for accuracy")
    parser.add_argument("--timeout", type=int, default=300, help="wall-clock seconds per target and scheme")
    parser.add_argument("--memory", type=float, default=12, help="GiB of address space per network")
    parser.add_argument("-o", "--output", type=Path, default=Path("zoo.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of finished files and exit")
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.table:
        print(table([record for path in arguments.table for record in read(path)]))
        return 0
    if arguments.child:
        _child(arguments.child, arguments.targets.split(","), arguments.schemes.split(","), arguments.calibration, arguments.inputs)
        return 0
    names = [name for name in cases() if name.startswith(tuple(arguments.networks.split(",")))]
    if arguments.list:
        print("\n".join(names))
        return 0
    done = read(arguments.output)
    for name in names:
        for targets, schemes in missing(done, name, arguments.targets.split(","), arguments.schemes.split(",")):
            for record in _run_in_child(name, targets, schemes, arguments, arguments.output):
                figures = " ".join(f"{key}={record[key]:.1f}" for key in ("fake_db", "pte_db") if record.get(key) is not None)
                print(
                    f"{name} {record['target']} {record['scheme']}: {record['status']} {figures} {_short(record.get('error', ''))}",
                    file=sys.stderr,
                )
    print(table(read(arguments.output)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

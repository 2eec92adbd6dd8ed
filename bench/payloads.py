"""Compare the payloads and programs of two versions of the code, byte by byte, for all cases of ``bench.payload_cases``.

``python -m bench.payloads [--groups a,b] [--models a,b] [--every N] [--jobs N] [--against REV|FILE] [--save FILE]``

``--against REV`` compiles the same cases with the package at a git revision. ``--against FILE`` compares with a file written by
``--save FILE``. Each case with a different payload or program is printed, and the exit status is 1 if there is one. A payload
contains the command stream, the weights and the addresses of inputs and outputs. Equal payloads therefore have equal cycles,
memory and results. Only ``ethorch/`` comes from the revision, so the revision must have the current public names.

``--jobs`` sets the number of processes. All cases take 40 minutes on one core; ``--every 20`` is a sample that takes two minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from bench.implementation import stdout_for_json

if TYPE_CHECKING:
    from bench.payload_cases import PayloadCase

#: Of one case: a digest of each payload and of the .pte and Vela's cycles of all, or the error's text.
Hashes = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent


def hashes(case: PayloadCase) -> Hashes:
    """Compile a case with the ``ethorch`` of this process.

    If compilation fails, return ``{"error": ...}``, so that cases that fail in the same way are equal.
    """
    import torch

    torch.set_num_threads(1)
    try:
        with _compiled_streams() as compiled:
            pte = case.compile()
        from ethorch.formats.pte import read

        delegates = [delegate for method in read(pte).methods.values() for delegate in method.delegates]
        streams = [compiled[bytes(delegate.payload.commands)] for delegate in delegates]
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {
        "payloads": [_hash(delegate.blob) for delegate in delegates],
        "pte": _hash(pte),
        "pte_bytes": len(pte),
        "cycles": sum(stream.cycles for stream in streams),
        "passes": sorted({name for stream in streams for name in stream.passes}),
        "vela": [_hash(stream.vela) for stream in streams],
    }


class _CompiledStream(NamedTuple):
    """A command stream: its cycles, the passes that changed it, and the stream before them."""

    cycles: int
    passes: tuple[str, ...]
    vela: bytes


@contextmanager
def _compiled_streams() -> Iterator[dict[bytes, _CompiledStream]]:
    """Collect the command streams that are compiled inside, by their bytes. Older revisions have no passes."""
    from ethorch.vela.compiled_model import CompiledModel

    found: dict[bytes, _CompiledStream] = {}
    construct = CompiledModel.__init__

    def collect(model: CompiledModel, *arguments: Any, **named: Any) -> None:
        construct(model, *arguments, **named)
        passes = tuple(effect.name for effect in getattr(model, "passes", ()))
        before = getattr(model, "before_passes", None)
        known = found.get(model.command_stream)
        vela = before.command_stream if before else known.vela if known else model.command_stream
        found[model.command_stream] = _CompiledStream(model.performance.total_cycles, passes, vela)

    with mock.patch.object(CompiledModel, "__init__", collect):
        yield found


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def in_children(package: Path, options: Sequence[str], jobs: int = 1) -> dict[str, Hashes]:
    """Compute ``hashes`` of the cases selected by ``options`` in ``jobs`` new processes that import ``ethorch`` from ``package``.

    Raises:
        RuntimeError: A process failed.
    """
    found: dict[str, Hashes] = {}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "ethorch").symlink_to(package)
        (place / "bench").symlink_to(ROOT / "bench")
        (place / "tests").symlink_to(ROOT / "tests")
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
        children = []
        for job in range(jobs):
            argv = [sys.executable, "-m", "bench.payloads", "--here", f"{job}/{jobs}", *options]
            log = place / f"stderr{job}"
            with log.open("w") as stderr:
                child = subprocess.Popen(argv, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
            children.append((child, log))
        with ThreadPoolExecutor(jobs) as pool:
            for records in pool.map(_records, (child for child, _ in children)):
                found |= records
        for child, log in children:
            if child.wait():
                raise RuntimeError(f"{' '.join(argv)} ended with {child.returncode}: {log.read_text()[-2000:]}")
    return dict(sorted(found.items()))


def _records(child: subprocess.Popen[str]) -> dict[str, Hashes]:
    found: dict[str, Hashes] = {}
    for line in child.stdout or ():
        record = json.loads(line)
        key = record.pop("key")
        found[key] = record
        print(f"{key}: {record.get('error') or 'compiled'}", file=sys.stderr, flush=True)
    return found


def extract_package(revision: str, into: Path) -> Path:
    """Extract the package ``ethorch/`` of a git revision.

    Raises:
        ValueError: The revision does not exist, or does not contain ``ethorch/``.
    """
    git = subprocess.run(["git", "archive", revision, "ethorch"], cwd=ROOT, capture_output=True, check=False)
    if git.returncode:
        raise ValueError(f"--against {revision}: {git.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(git.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into / "ethorch"


def differences(before: dict[str, Hashes], after: dict[str, Hashes]) -> Iterator[str]:
    """Yield a line for each case whose hashes differ. Cases that are missing on one side are omitted."""
    for key in (key for key in before if key in after):
        was, is_ = before[key], after[key]
        if all(was.get(name) == is_.get(name) for name in ("error", "payloads", "pte")):
            continue
        if "error" in was or "error" in is_:
            yield f"{key}: {was.get('error', 'compiled')} -> {is_.get('error', 'compiled')}"
        elif was["payloads"] == is_["payloads"]:
            yield f"{key}: equal payloads in another program ({was['pte_bytes']} -> {is_['pte_bytes']} bytes)"
        else:
            other = sum(a != b for a, b in zip(was["payloads"], is_["payloads"], strict=False))
            rise = 100 * (is_["cycles"] - was["cycles"]) / max(was["cycles"], 1)
            cycles = f"{was['cycles']:,} -> {is_['cycles']:,} cycles ({rise:+.2f}%)"
            line = f"{key}: {len(was['payloads'])} -> {len(is_['payloads'])} payloads, {other} of them differ; {cycles}"
            yield line + _explain(was, is_)


def _explain(was: Hashes, is_: Hashes) -> str:
    """Return the passes over command streams that differ, and whether Vela's streams before them are equal."""
    names = sorted({*was.get("passes", ()), *is_.get("passes", ())})
    if not names:
        return ""
    is_equal = was.get("vela") == is_.get("vela")
    return f"; passes: {', '.join(names)}; Vela's streams are {'equal' if is_equal else 'different'}"


def select_cases(groups: str, models: Sequence[str], every: int) -> list[PayloadCase]:
    """Return every ``every``-th case of the comma-separated groups."""
    from bench.payload_cases import all_cases

    wanted = groups.split(",")
    return [case for case in all_cases(list(models)) if groups == "all" or case.group in wanted][::every]


def main(arguments: list[str] | None = None) -> int:
    from bench.models import models_named
    from bench.payload_cases import GROUPS

    parser = argparse.ArgumentParser(prog="python -m bench.payloads", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", default="all", help=f'comma-separated: {", ".join(GROUPS)}; default: "all"')
    parser.add_argument("--models", default="all", help='models of the first two groups, comma-separated; default: "all"')
    parser.add_argument("--every", type=int, default=1, metavar="N", help="compile one case of N")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes")
    parser.add_argument("--against", help="git revision, or file written by --save")
    parser.add_argument("--save", type=Path, help="write the hashes to this file as JSON")
    parser.add_argument("--here", metavar="I/N", help="compile part I of N in this process, and print JSON lines")
    options = parser.parse_args(arguments)
    models = models_named(parser, options.models)
    if unknown := set(options.groups.split(",")) - {"all", *GROUPS}:
        parser.error(f"--groups: unknown {', '.join(sorted(unknown))}; known: {', '.join(GROUPS)}")
    if options.every < 1 or options.jobs < 1:
        parser.error("--every and --jobs must be at least 1")
    if options.here:
        part, parts = map(int, options.here.split("/"))
        with stdout_for_json() as stdout:
            for case in select_cases(options.groups, models, options.every)[part::parts]:
                os.write(stdout, (json.dumps({"key": case.key, **hashes(case)}) + "\n").encode())
        return 0
    selection = ["--groups", options.groups, "--models", ",".join(models), "--every", str(options.every)]
    with tempfile.TemporaryDirectory() as directory:
        before: dict[str, Hashes] = {}
        package = None
        if options.against and Path(options.against).is_file():
            before = json.loads(Path(options.against).read_text())
        elif options.against:
            try:
                package = extract_package(options.against, Path(directory))  # before the long run, since a revision may be misspelt
            except ValueError as error:
                parser.error(str(error))
        after = in_children(ROOT / "ethorch", selection, options.jobs)
        if package is not None:
            before = in_children(package, selection, options.jobs)
    if options.save:
        options.save.write_text(json.dumps(after, indent=0) + "\n")
    if not options.against:
        for key, record in after.items():
            print(key, record.get("error") or " ".join(payload[:16] for payload in record["payloads"]))
        return 0
    lines = list(differences(before, after))
    compared = sum(key in after for key in before)
    print("\n".join([*lines, f"{compared - len(lines)} of {compared} are equal to {options.against}."]))
    return 1 if lines or not compared else 0


if __name__ == "__main__":
    sys.exit(main())

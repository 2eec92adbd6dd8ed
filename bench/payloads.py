"""Did a change of the code change what is compiled? Hashes of the payloads of the README's networks.

``python -m bench.payloads [--models a,b] [--targets t,u] [--against REV|FILE] [--save FILE]``

``--against REV`` compiles the same networks with the package as it was at a git revision, and names each network whose payloads
or program differ; the exit status is 1 where any does. ``--against FILE`` compares with what ``--save FILE`` wrote. A payload is
the command stream, the weights and the places of inputs and outputs, so equal payloads have equal cycles, memory and results.

The networks and this flow are those of the present tree in both runs; of the revision only ``ethorch/`` is taken, through its
public names, which have been the same since 0.1.0. Each run is a process of its own. All networks on both targets take some
ten minutes of one core a run; ``--models resnet8,ds_cnn,lstm`` is a cross-section that takes half a minute.
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
from pathlib import Path
from typing import Any

from bench.compile import DEFAULT_TARGETS
from bench.implementation import load_api, memory_for, stdout_for_json

#: Of one network on one target: the SHA-256 of each payload and of the .pte, or the error's text.
Hashes = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent


def compiled(model: str, target: str, calibration: int = 8) -> Hashes:
    """Quantizes and compiles one network with the ``ethorch`` of this process.

    An exception of the flow becomes ``{"error": ...}``: a network that fails in the same way is equal, too.
    """
    import torch
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from bench.models import ALL_MODELS

    torch.set_num_threads(1)
    api, case = load_api("ethorch"), ALL_MODELS[model]
    system_config, memory_mode = memory_for(target)
    spec = api.EthosUCompileSpec(
        target, system_config=system_config, memory_mode=memory_mode, extra_flags=["--optimise", "Performance"]
    )
    payloads: list[str] = []
    preprocess = api.EthosUBackend.preprocess

    def watched(*arguments: Any, **named: Any) -> Any:
        result = preprocess(*arguments, **named)
        payloads.append(_hash(result.processed_bytes))
        return result

    api.EthosUBackend.preprocess = staticmethod(watched)
    try:
        quantizer = api.EthosUQuantizer(spec).set_global(api.get_symmetric_quantization_config(is_per_channel=True))
        inputs = case.example_inputs()
        prepared = prepare_pt2e(torch.export.export(case.build(), inputs).module(check_guards=False), quantizer)
        with torch.no_grad():
            for sample in case.calibration(calibration):
                prepared(*sample)
        edge = to_edge_transform_and_lower(
            torch.export.export(convert_pt2e(prepared), inputs),
            partitioner=[api.EthosUPartitioner(spec)],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        pte = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False)).buffer
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    finally:
        api.EthosUBackend.preprocess = staticmethod(preprocess)
    return {"payloads": payloads, "pte": _hash(pte), "pte_bytes": len(pte)}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def in_child(package: Path, models: Sequence[str], targets: Sequence[str]) -> dict[str, Hashes]:
    """``compiled`` of each network on each target in one new process, with ``package`` as its ``ethorch``."""
    found: dict[str, Hashes] = {}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "ethorch").symlink_to(package)
        (place / "bench").symlink_to(ROOT / "bench")
        argv = [sys.executable, "-m", "bench.payloads", "--here", "--models", ",".join(models), "--targets", ",".join(targets)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with (place / "stderr").open("w") as stderr:
            child = subprocess.Popen(argv, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
            for line in child.stdout or ():
                record = json.loads(line)
                found[record.pop("key")] = record
                print(f"{list(found)[-1]}: {record.get('error') or 'compiled'}", file=sys.stderr, flush=True)
        if child.wait():
            raise RuntimeError(f"{' '.join(argv)} ended with {child.returncode}: {(place / 'stderr').read_text()[-2000:]}")
    return found


def extracted(revision: str, into: Path) -> Path:
    """The package ``ethorch/`` of a git revision.

    Raises:
        ValueError: git knows no such revision, or it has no ``ethorch/``.
    """
    git = subprocess.run(["git", "archive", revision, "ethorch"], cwd=ROOT, capture_output=True, check=False)
    if git.returncode:
        raise ValueError(f"--against {revision}: {git.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(git.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into / "ethorch"


def differences(before: dict[str, Hashes], after: dict[str, Hashes]) -> Iterator[str]:
    """A line for each network and target whose hashes are not the same in both; keys of one of them alone are left out."""
    for key in (key for key in before if key in after):
        was, is_ = before[key], after[key]
        if was == is_:
            continue
        if "error" in was or "error" in is_:
            yield f"{key}: {was.get('error', 'compiled')} -> {is_.get('error', 'compiled')}"
        elif was["payloads"] == is_["payloads"]:
            yield f"{key}: equal payloads in another program ({was['pte_bytes']} -> {is_['pte_bytes']} bytes)"
        else:
            other = sum(a != b for a, b in zip(was["payloads"], is_["payloads"], strict=False))
            yield f"{key}: {len(was['payloads'])} -> {len(is_['payloads'])} payloads, {other} of them differ"


def main(arguments: list[str] | None = None) -> int:
    from bench.models import models_named

    parser = argparse.ArgumentParser(prog="python -m bench.payloads", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="all", help='comma-separated; default: "all"')
    parser.add_argument("--targets", default=",".join(DEFAULT_TARGETS), help="comma-separated; default: %(default)s")
    parser.add_argument("--against", help="a git revision, or a file that --save wrote")
    parser.add_argument("--save", type=Path, help="write the hashes to this file as JSON")
    parser.add_argument("--here", action="store_true", help="in this process, a line of JSON each")
    options = parser.parse_args(arguments)
    models, targets = models_named(parser, options.models), options.targets.split(",")
    if options.here:
        with stdout_for_json() as stdout:
            for model in models:
                for target in targets:
                    record = {"key": f"{model} {target}", **compiled(model, target)}
                    os.write(stdout, (json.dumps(record) + "\n").encode())
        return 0
    with tempfile.TemporaryDirectory() as directory:
        before: dict[str, Hashes] = {}
        package = None
        if options.against and Path(options.against).is_file():
            before = json.loads(Path(options.against).read_text())
        elif options.against:
            try:
                package = extracted(options.against, Path(directory))  # before the long run, since a revision may be misspelt
            except ValueError as error:
                parser.error(str(error))
        after = in_child(ROOT / "ethorch", models, targets)
        if package is not None:
            before = in_child(package, models, targets)
    if options.save:
        options.save.write_text(json.dumps(after, indent=1) + "\n")
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

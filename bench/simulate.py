"""How fast the simulated NPU is, against the TOSA reference model on the same graph, whether both agree; and its memory.

``python -m bench.simulate [--models a,b] [--targets t,u] [--json]``

Each network runs in a process of its own: it is compiled by ethorch, its inputs are those of fresh samples, and simulator
and reference model take turns, so that whatever else the computer is doing falls on both. The simulator's first run decodes
weights and prepares operations; later runs reuse that. Seconds are CPU seconds (`time.process_time`), the least of several runs.
Memory is what a process that does nothing else needs beyond its imports, program and regions included,
against the sizes of the regions.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.compile import geometric_mean, provenance
from bench.implementation import memory_for, run_in_child, stdout_for_json
from ethorch.formats.payload import DelegatePayload

Record = dict[str, Any]


def measure(model: str, target: str, runs: int = 5) -> Record:
    """One network on one target, in this process: seconds of simulator and reference, and elements that differ."""
    import numpy as np
    import tosa_reference_model

    from bench.models import ALL_MODELS
    from ethorch import flow, host
    from ethorch.model_files import UserModel
    from ethorch.npu import Machine, Program, staging_bytes
    from ethorch.report.compare import Recorder, delegate_arrays
    from ethorch.target.compile_spec import EthosUCompileSpec

    case = ALL_MODELS[model]
    user = UserModel(case.build(), case.example_inputs(), case.calibration(8))
    system_config, memory_mode = memory_for(target)
    spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
    build = flow.build(flow.quantize(user, spec), user.example_inputs, spec)
    record: Record = {"model": model, "target": target, "runs": runs, "delegates": len(build.delegates)}
    first, later, reference, preparing = 0.0, 0.0, 0.0, 0.0
    different = elements = 0
    distinct: set[int] = set()
    recorders: list[Recorder] = []

    def recording(payload: Any) -> Recorder:
        recorders.append(Recorder(payload))
        return recorders[-1]

    device = host.load(build.pte, machine=recording)
    samples = case.calibration(runs, seed=99)
    taken: list[list[list[np.ndarray[Any, Any]]]] = []
    for sample in samples:
        device(*sample)
        taken.append([recorder.inputs for recorder in recorders])
    by_payload = {delegate.payload: delegate for delegate in build.delegates}
    gc.collect()
    gc.freeze()  # a collection among torch's objects from compiling takes 0.4 s, and would fall on any one run
    for number, recorder in enumerate(recorders):
        delegate = by_payload[recorder.payload]
        started = time.process_time()
        program = Program(delegate.payload.commands, delegate.payload.weights)
        machine = Machine(program, delegate.payload.scratch_bytes, staging_bytes(program))
        preparing += time.process_time() - started
        times, reference_times = [], []
        for inputs in (step[number] for step in taken):
            for place, data in zip(delegate.payload.inputs, inputs, strict=True):
                machine.region(place.region)[place.offset : place.offset + place.nbytes] = data
            started = time.process_time()
            machine.run()
            times.append(time.process_time() - started)
            arrays = delegate_arrays(delegate, inputs)
            started = time.process_time()
            wanted, _ = tosa_reference_model.run(delegate.tosa, arrays)
            reference_times.append(time.process_time() - started)
            for place, expected in zip(delegate.payload.outputs, wanted, strict=True):
                found = machine.region(place.region)[place.offset : place.offset + place.nbytes].view(expected.dtype)
                elements += expected.size
                different += int((found != expected.ravel()).sum())
                distinct |= set(np.unique(expected).tolist())
        first += times[0]
        later += min(times[1:])
        reference += min(reference_times)
    return record | {
        "first_seconds": preparing + first,
        "later_seconds": later,
        "reference_seconds": reference,
        "elements": elements,
        "different": different,
        "distinct_values": len(distinct),
        **memory([delegate.payload for delegate in build.delegates]),
    }


def memory(payloads: Sequence[DelegatePayload]) -> dict[str, int]:
    """memory_bytes and region_bytes of the delegate that needs most for its regions, each in a process of its own."""
    worst = {"memory_bytes": 0, "region_bytes": 1}
    for payload in payloads:
        with tempfile.NamedTemporaryFile(suffix=".payload") as file:
            file.write(payload.pack())
            file.flush()
            one = run_in_child("bench.simulate", ["--payload", file.name])
        if "error" in one:
            raise RuntimeError(one["error"]["message"])
        worst = max(worst, one, key=lambda m: m["memory_bytes"] / m["region_bytes"])
    return worst


def _memory_here(path: str) -> dict[str, int]:
    """What running a payload twice needs of this process; the payload's own bytes, region 0, are part of it."""
    import numpy as np

    from ethorch.npu import Machine, Program, staging_bytes
    from ethorch.npu.plan import library
    from ethorch.npu.weights import compiled

    compiled.library()
    library()
    for dtype in (np.float32, np.float64):  # what NumPy's BLAS allocates once and for all
        np.ones((512, 512), dtype) @ np.ones((512, 512), dtype)
    payload = DelegatePayload.unpack(Path(path).read_bytes())
    before = _resident_bytes("VmRSS") - len(payload.weights) - len(payload.commands)
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident now
    program = Program(payload.commands, payload.weights)
    machine = Machine(program, payload.scratch_bytes, staging_bytes(program))
    for _ in range(2):
        machine.run()
    regions = sum(region.size for region in machine.regions.values())
    return {"memory_bytes": _resident_bytes("VmHWM") - before, "region_bytes": regions}


def _resident_bytes(key: str) -> int:
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0])


def table(records: Sequence[Record]) -> str:
    """Markdown: a line per network and target, ratios of CPU seconds against the reference model."""
    head = ["model", "target", "first run, s", "later runs, s", "reference, s", "first", "later", "memory", "elements that differ"]
    rows = [head, ["---"] * len(head)]
    good = [r for r in records if "error" not in r]
    for r in records:
        if "error" in r:
            last = (r["error"]["message"].strip().splitlines() or [""])[-1]
            rows.append([r["model"], r["target"], f"failed: {r['error']['type']}: {last[:120]}", *[""] * 6])
            continue
        seconds = [f"{r[key]:.3f}" for key in ("first_seconds", "later_seconds", "reference_seconds")]
        ratio = [f"{r[key] / r['reference_seconds']:.2f}" for key in ("first_seconds", "later_seconds")]
        ratio.append(f"{r['memory_bytes'] / r['region_bytes']:.1f}")
        rows.append([r["model"], r["target"], *seconds, *ratio, f"{r['different']} of {r['elements']}"])
    if good:
        means = [
            f"**{geometric_mean([r[key] / r['reference_seconds'] for r in good]):.2f}**"
            for key in ("first_seconds", "later_seconds")
        ]
        rows.append(["geometric mean of ratios", "", "", "", "", *means, "", ""])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help='comma-separated, or "all"; default: the first seven')
    parser.add_argument("--targets", default="ethos-u55-128", help="comma-separated")
    parser.add_argument("--runs", type=int, default=5, help="inputs per network; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.add_argument("--here", action="store_true", help="one network, in this process")
    parser.add_argument("--payload", help="the memory that one payload needs, in this process")
    options = parser.parse_args(arguments)

    if options.payload:
        with stdout_for_json() as stdout:
            os.write(stdout, (json.dumps(_memory_here(options.payload)) + "\n").encode())
        return 0
    from bench.models import models_named

    models = models_named(parser, options.models)
    if options.runs < 2:
        parser.error("--runs: at least 2, the first run is apart")
    if options.here:
        with stdout_for_json() as stdout:
            text = json.dumps(measure(models[0], options.targets.split(",")[0], options.runs))
            os.write(stdout, (text + "\n").encode())
        return 0
    records = []
    for target in options.targets.split(","):
        for model in models:
            print(f"{target} {model} ...", file=sys.stderr, flush=True)
            argv = ["--here", "--models", model, "--targets", target, "--runs", str(options.runs)]
            records.append({"model": model, "target": target, **run_in_child("bench.simulate", argv)})
    if options.json:
        print(json.dumps({"provenance": provenance(), "records": records}, indent=1))
    else:
        print(f"{provenance()}\n\n{table(records)}")
    return 1 if any(r.get("different", 1) for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())

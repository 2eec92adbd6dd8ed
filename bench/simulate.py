"""Measure speed and memory of the NPU simulator against PyTorch and the TOSA reference model, and compare the results.

``python -m bench.simulate [--models a,b] [--targets t,u] [--json]``

Each network runs in a separate process. Simulator and reference model alternate, so that other load affects both equally. The
simulator's first run decodes weights and prepares operations, which later runs reuse. Seconds are CPU seconds
(`time.process_time`), the minimum of several runs. PyTorch runs the float model eagerly on one thread and one image. Memory is that
of a separate process, excluding imports; the table also lists the sizes of the regions. ``share`` is the share of the program's
work that compiled code executes.

A batch (`ethorch.npu.run_many`) runs on one thread and on two threads. Images per CPU second are measured on one thread. The
speedup is in wall-clock time, and is valid only if two CPUs are idle. Memory per image is the growth of the peak for each of
BATCH_GROWTH further images; the table also lists the bytes of inputs and outputs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.compile import geometric_mean, provenance
from bench.implementation import memory_for, run_in_child, stdout_for_json
from ethorch.formats.payload import DelegatePayload

Record = dict[str, Any]
TURNS = 4  # of the simulator and PyTorch for each input, and of batches on one and two threads
BATCH_IMAGES = 20000  # at most
BATCH_SECONDS = 1.0  # of a batch on one thread: where it is short, two threads differ by the last image
BATCH_GROWTH = 64  # further images whose memory is measured


def measure(model: str, target: str, runs: int = 5) -> Record:
    """Measure one network on one target in this process: seconds of the simulator and the reference, and differing elements."""
    import numpy as np
    import tosa_reference_model

    from bench.models import ALL_MODELS
    from ethorch import runtime
    from ethorch.backend.build import build_pte
    from ethorch.models.load import UserModel
    from ethorch.npu import Machine, Program, staging_bytes
    from ethorch.program.measure.ladder import Recorder
    from ethorch.quantization.calibrate import quantize
    from ethorch.targets.compile_spec import EthosUCompileSpec
    from ethorch.vela.verification import delegate_arrays

    case = ALL_MODELS[model]
    user = UserModel(case.build(), case.example_inputs(), case.calibration(8))
    system_config, memory_mode = memory_for(target)
    spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
    build = build_pte(quantize(user, spec), user.example_inputs, spec)
    record: Record = {"model": model, "target": target, "runs": runs, "delegates": len(build.delegates)}
    first, later, reference, preparing = 0.0, 0.0, 0.0, 0.0
    different = elements = 0
    distinct: set[int] = set()
    recorders: list[Recorder] = []

    def recording(payload: Any) -> Recorder:
        recorders.append(Recorder(payload))
        return recorders[-1]

    device = runtime.load(build.pte, machine=recording)
    samples = case.calibration(runs, seed=99)
    taken: list[list[list[np.ndarray[Any, Any]]]] = []
    for sample in samples:
        device(*sample)
        taken.append([recorder.inputs for recorder in recorders])
    by_payload = {delegate.payload: delegate for delegate in build.delegates}
    eager = _eager(case, user.module)
    batch: Record = {}
    shares: list[tuple[float, int]] = []
    eager_seconds = float("inf")
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
            for _ in range(TURNS):
                for place, data in zip(delegate.payload.inputs, inputs, strict=True):
                    machine.region(place.region)[place.offset : place.offset + place.nbytes] = data
                started = time.process_time()
                machine.run()
                times.append(time.process_time() - started)
                eager_seconds = min(eager_seconds, eager())
            arrays = delegate_arrays(delegate, inputs)
            started = time.process_time()
            wanted, _ = tosa_reference_model.run(delegate.tosa, arrays)
            reference_times.append(time.process_time() - started)
            for place, expected in zip(delegate.payload.outputs, wanted, strict=True):
                found = machine.region(place.region)[place.offset : place.offset + place.nbytes].view(expected.dtype)
                elements += expected.size
                different += int((found != expected.ravel()).sum())
                distinct |= set(np.unique(expected).tolist())
        shares.append((machine.plan.share if machine.plan else 0.0, program.work))
        if number == 0:
            batch = measure_batch(program, delegate.payload, [step[0] for step in taken], min(times[1:]))
        first += times[0]
        later += min(times[1:])
        reference += min(reference_times)
    return record | {
        "first_seconds": preparing + first,
        "later_seconds": later,
        "reference_seconds": reference,
        "eager_seconds": eager_seconds,
        "share": sum(share * work for share, work in shares) / max(sum(work for _, work in shares), 1),
        **batch,
        "elements": elements,
        "different": different,
        "distinct_values": len(distinct),
        **memory([delegate.payload for delegate in build.delegates]),
    }


def _eager(case: Any, module: Any) -> Callable[[], float]:
    """Return a function that measures the CPU seconds of one run of the float model, after a warm-up run."""
    import torch

    torch.set_num_threads(1)
    inputs = case.example_inputs()
    module.eval()

    def once() -> float:
        with torch.no_grad():
            started = time.process_time()
            module(*inputs)
            return time.process_time() - started

    for _ in range(TURNS):
        once()
    return once


def measure_batch(program: Any, payload: DelegatePayload, inputs: Sequence[Any], seconds: float) -> Record:
    """Measure a delegate for a batch: images per CPU second, and wall-clock speedup of two threads.

    Args:
        seconds: Time of one image.
    """
    import numpy as np

    from ethorch.npu import Place, run_many, staging_bytes

    count = max(4, min(BATCH_IMAGES, int(BATCH_SECONDS / seconds)))
    given = [
        (Place(t.region, t.offset, t.nbytes), np.stack([inputs[n % len(inputs)][k] for n in range(count)]).view(np.uint8))
        for k, t in enumerate(payload.inputs)
    ]
    wanted = [Place(t.region, t.offset, t.nbytes) for t in payload.outputs]
    best: dict[int, tuple[float, float]] = {}
    for _ in range(TURNS):
        for threads in (1, 2):
            clock, cpu = time.perf_counter(), time.process_time()
            run_many(program, given, wanted, payload.scratch_bytes, staging_bytes(program), threads=threads)
            found = time.perf_counter() - clock, time.process_time() - cpu
            best[threads] = min(best.get(threads, found)[0], found[0]), min(best.get(threads, found)[1], found[1])
    return {
        "images": count,
        "images_per_cpu_second": count / best[1][1],
        "images_per_cpu_second_of_two_threads": count / best[2][1],
        "speedup_of_two_threads": best[1][0] / best[2][0],
    }


def memory(payloads: Sequence[DelegatePayload]) -> dict[str, int]:
    """Return memory_bytes and region_bytes of the delegate with the largest regions. Each delegate runs in a separate process."""
    worst = {"memory_bytes": 0, "region_bytes": 1, "image_bytes": 0, "io_bytes": 1}
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
    import numpy as np

    from ethorch.npu import Machine, Program, staging_bytes
    from ethorch.npu.plan.library import library
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
        for place in payload.inputs:  # what a run has left there may be no index of a table
            machine.region(place.region)[place.offset : place.offset + place.nbytes] = 0
        machine.run()
    regions = sum(region.size for region in machine.regions.values())
    needed = _resident_bytes("VmHWM") - before
    io_bytes = sum(t.nbytes for t in (*payload.inputs, *payload.outputs))
    return {"memory_bytes": needed, "region_bytes": regions, "image_bytes": _per_image(program, payload), "io_bytes": io_bytes}


def _per_image(program: Any, payload: DelegatePayload) -> int:
    import numpy as np

    from ethorch.npu import Place, run_many, staging_bytes

    peaks = []
    for count in (1, 1 + BATCH_GROWTH):
        before = _resident_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        given = [(Place(t.region, t.offset, t.nbytes), np.empty((count, t.nbytes), np.uint8)) for t in payload.inputs]
        for _, images in given:
            images.fill(0)  # and so are resident; ones may be no indices
        wanted = [Place(t.region, t.offset, t.nbytes) for t in payload.outputs]
        found = run_many(program, given, wanted, payload.scratch_bytes, staging_bytes(program), threads=1)
        peaks.append(_resident_bytes("VmHWM") - before)
        del given, found
    return max(peaks[1] - peaks[0], 0) // BATCH_GROWTH


def _resident_bytes(key: str) -> int:
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0])


def table(records: Sequence[Record]) -> str:
    """Format a Markdown table with a row for each network and target, and ratios of CPU seconds against the reference model."""
    head = [
        "model", "target", "first run, s", "later runs, ms", "PyTorch, ms", "reference, s", "later / PyTorch", "first / reference",
        "memory / regions", "share", "images / CPU s", "of two threads", "speedup", "bytes / image, of I/O", "elements that differ",
    ]  # fmt: skip
    rows = [head, ["---"] * len(head)]
    good = [r for r in records if "error" not in r]
    for r in records:
        if "error" in r:
            last = (r["error"]["message"].strip().splitlines() or [""])[-1]
            rows.append([r["model"], r["target"], f"failed: {r['error']['type']}: {last[:120]}", *[""] * (len(head) - 3)])
            continue
        rows.append(
            [
                r["model"],
                r["target"],
                f"{r['first_seconds']:.3f}",
                f"{1e3 * r['later_seconds']:.2f}",
                f"{1e3 * r['eager_seconds']:.2f}",
                f"{r['reference_seconds']:.3f}",
                f"{r['later_seconds'] / r['eager_seconds']:.2f}",
                f"{r['first_seconds'] / r['reference_seconds']:.2f}",
                f"{r['memory_bytes'] / r['region_bytes']:.1f}",
                f"{r['share']:.1%}",
                f"{r['images_per_cpu_second']:.0f}",
                f"{r['images_per_cpu_second_of_two_threads']:.0f}",
                f"{r['speedup_of_two_threads']:.2f}",
                f"{r['image_bytes'] / r['io_bytes']:.1f}",
                f"{r['different']} of {r['elements']}",
            ]
        )
    if good:
        later = geometric_mean([r["later_seconds"] / r["eager_seconds"] for r in good])
        first = geometric_mean([r["first_seconds"] / r["reference_seconds"] for r in good])
        rows.append(["geometric mean", *[""] * 5, f"**{later:.2f}**", f"**{first:.2f}**", *[""] * (len(head) - 8)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help='comma-separated, or "all"; default: the first seven')
    parser.add_argument("--targets", default="ethos-u55-128", help="comma-separated")
    parser.add_argument("--runs", type=int, default=5, help="inputs per network; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    parser.add_argument("--here", action="store_true", help="measure one network in this process")
    parser.add_argument("--payload", help="measure the memory of one payload in this process")
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

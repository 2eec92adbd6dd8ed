"""Measure compile time in CPU seconds, compared with the Arm backend and with Vela, and as a function of network size.

``python -m bench.compile_seconds [--models a,b] [--target T] [--repeat N] [--arm-repeat N] [--growth] [--json]``

Each run is a separate process with one torch thread. The implementations alternate, so that other load affects both equally.
Figures are medians of CPU seconds (`time.process_time`). Imports and the comparison with the TOSA reference have separate columns.
The steps of ethorch are those of `quantize` and `build_pte`. The steps of the Arm backend are `torch.export` of the converted
graph, `to_edge_transform_and_lower` and `to_executorch`. ``--growth`` compiles chains of equal layers and networks of several
hundred operators.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

from bench.compile import markdown_row, provenance, to_pte_seconds
from bench.implementation import Recorder, Steps, convert_in_steps, load_api, memory_for, run_in_child, stdout_for_json

if TYPE_CHECKING:
    from bench.models.case import ModelCase

Record = dict[str, Any]
DEFAULT_MODELS = ("mobilenet_v2", "lstm", "bert")
QUANTIZE = ("export", "prepare", "calibrate", "convert")
SAMPLES = 8
LARGE = "timm/efficientvit_m0"  # 795 operators


def measure_here(model: str, target: str) -> Record:
    """Compile one network with ethorch in this process; return the CPU seconds of imports, each step and Vela."""
    import torch

    importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")  # before time is measured, as torch
    torch.set_num_threads(1)
    recorder = Recorder()
    recorder.watch_vela()
    started = time.process_time()
    api = load_api("ethorch")
    from ethorch.backend.build import build_pte

    for late in ("ethorch.backend.through_executorch", "tosa_serializer"):  # what is imported where it is needed
        importlib.import_module(late)
    importlib.import_module("ethorch.runtime.delegate").host_backend()
    import_seconds = time.process_time() - started
    case = _case(model)
    module, inputs, samples = case.build(), case.example_inputs(), case.calibration(SAMPLES)
    system_config, memory_mode = memory_for(target)
    spec = api.EthosUCompileSpec(
        target, system_config=system_config, memory_mode=memory_mode, extra_flags=["--optimise", "Performance"]
    )
    quantizer = api.EthosUQuantizer(spec).set_global(api.get_symmetric_quantization_config(is_per_channel=True))
    steps = Steps()
    from ethorch.quantization.prepare import prepare
    from ethorch.support.garbage import delay_collection
    from ethorch.vela import repair

    @contextmanager
    def step(name: str) -> Iterator[None]:  # as quantize has them
        with steps(name), nullcontext() if name == "calibrate" else delay_collection():
            yield

    with step("export"):
        graph = torch.export.export(module, inputs).module(check_guards=False)
    converted = convert_in_steps(graph, quantizer, samples, step, prepare)  # as quantize does
    with (
        step("build"),
        mock.patch.object(repair, "repair_delegate", functools.partial(_time_repair, steps, repair.repair_delegate)),
    ):
        built = build_pte(converted, inputs, spec)
    compared = steps.seconds.pop("compare", 0.0)
    steps.seconds["build"] -= compared
    from ethorch.models.load import UserModel
    from ethorch.program.record import Record
    from ethorch.program.verification import verify_program

    record = Record(built.pte, build=built, model=UserModel(module, inputs, samples))
    with steps("verify"):  # as ethorch.compile does
        verify_program(record)
    steps.seconds["verify"] += compared
    return {
        "import_seconds": import_seconds,
        "seconds": steps.seconds,
        "vela_seconds": recorder.vela_seconds,
        "vela_runs": recorder.vela_runs,
        "delegates": len(built.delegates),
        "cpu_operators": len(built.partition.refusals),
        "quantized_nodes": len(converted.graph.nodes),
        "exported_operators": sum(node.op == "call_function" for node in graph.graph.nodes),
        "pte_bytes": len(built.pte),
    }


def _time_repair(steps: Steps, repair_delegate: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``ethorch.vela.repair.repair_delegate``, and add its CPU seconds to those of the step "compare"."""
    before = steps.seconds.get("compare", 0.0)
    with steps("compare"):
        result = repair_delegate(*arguments)
    steps.seconds["compare"] += before
    return result


def _case(model: str) -> ModelCase:
    """Return a network of the benchmarks, a growing network, or an image network of the zoo."""
    from bench.models import ALL_MODELS
    from bench.models.growing import GROWING

    known = {**ALL_MODELS, **GROWING}
    if model not in known:
        from bench.zoo.images import CASES  # wants timm

        known |= {case.name: case for case in CASES}
    return known[model]


def medians(runs: Sequence[Record]) -> Record:
    """Return the median of each number over the runs of a network, or the record of the first failed run."""
    for run in runs:
        if "error" in run:
            return run
    first = runs[0]
    seconds = {step: statistics.median(run["seconds"][step] for run in runs) for step in first["seconds"]}
    totals = {name: statistics.median(total(run) for run in runs) for name, total in TOTALS.items()}
    own = {name: statistics.median(run[name] for run in runs) for name in ("import_seconds", "vela_seconds")}
    return {**first, "runs": len(runs), "seconds": seconds, **own, **totals}


def _sum(run: Record, steps: Sequence[str]) -> float:
    return float(sum(run["seconds"][step] for step in steps))


#: Sums over steps; the median of a sum is not the sum of medians.
TOTALS: Mapping[str, Callable[[Record], float]] = {
    "quantize": lambda run: _sum(run, QUANTIZE),
    "to_pte": lambda run: to_pte_seconds(run),
    "whole": lambda run: _sum(run, QUANTIZE) + to_pte_seconds(run),
}


def measure(models: Sequence[str], target: str, repeat: int, arm_repeat: int) -> list[Record]:
    """Return the medians for each network and implementation."""
    records = []
    for model in models:
        runs: dict[str, list[Record]] = {"ethorch": [], "arm": []}
        for turn in range(max(repeat, arm_repeat)):
            for impl, times in (("ethorch", repeat), ("arm", arm_repeat)):
                if turn < times:
                    print(f"{target} {model} {impl} {turn + 1} of {times} ...", file=sys.stderr, flush=True)
                    if impl == "arm":
                        run = run_in_child("bench.implementation", ["--impl", impl, "--model", model, "--target", target])
                    else:
                        run = run_in_child("bench.compile_seconds", ["--here", "--models", model, "--target", target])
                    runs[impl].append(run)
        records += [{"model": model, "target": target, "impl": impl, **medians(done)} for impl, done in runs.items() if done]
    return records


def _both(ethorch: float, arm: float | None) -> str:
    return f"{ethorch:.2f}" if arm is None else f"{ethorch:.2f} / {arm:.1f} ({arm / ethorch:.0f}x)"


def table(records: Sequence[Record]) -> str:
    """Format a Markdown table with a row for each network. A cell contains "ethorch / Arm backend (speedup)"."""
    head = [
        "model", "nodes", "on the CPU", "imports, s", "module to .pte, s", "quantize, s", "converted graph to .pte, s",
        "verification, s", "Vela, s", "goal: 1.4 x Vela + 0.2 s",
    ]  # fmt: skip
    lines = [markdown_row(head), markdown_row(["---"] * len(head))]
    by_key = {(r["model"], r["impl"]): r for r in records}
    for model in dict.fromkeys(r["model"] for r in records):
        ethorch, arm = by_key.get((model, "ethorch")), by_key.get((model, "arm"))
        if ethorch is None or "error" in ethorch:
            lines.append(markdown_row([model, "failed" if ethorch else "-", *[""] * (len(head) - 2)]))
            continue
        other = arm if arm is not None and "error" not in arm else None
        cells = [f"{ethorch['import_seconds']:.1f}"]
        cells += [_both(ethorch[name], other[name] if other else None) for name in ("whole", "quantize", "to_pte")]
        cells.append(
            f"{ethorch['seconds']['verify']:.2f} ({ethorch['seconds']['verify'] / ethorch['whole']:.0%} of module to .pte)"
        )
        vela = ethorch["vela_seconds"]
        lines.append(
            markdown_row(
                [
                    model,
                    str(ethorch["quantized_nodes"]),
                    str(ethorch["cpu_operators"]),
                    *cells,
                    f"{vela:.2f}",
                    f"{1.4 * vela + 0.2:.2f}",
                ]
            )
        )
    return "\n".join(lines)


def growth_table(records: Sequence[Record]) -> str:
    """Format a Markdown table of the seconds per step. If growth is linear, the seconds per thousand nodes are constant."""
    head = [
        "model",
        "nodes",
        *QUANTIZE,
        "build",
        "of which Vela",
        "rest of build, ms per 1000 nodes",
        "quantize, ms per 1000 nodes",
    ]
    lines = [markdown_row(head), markdown_row(["---"] * len(head))]
    for r in records:
        if "error" in r:
            lines.append(markdown_row([r["model"], f"failed: {r['error']['message'][-120:]}", *[""] * (len(head) - 2)]))
            continue
        seconds, nodes = r["seconds"], r["quantized_nodes"]
        rest = (seconds["build"] - r["vela_seconds"]) / nodes * 1e6
        steps = [f"{seconds[step]:.2f}" for step in (*QUANTIZE, "build")]
        lines.append(
            markdown_row(
                [r["model"], str(nodes), *steps, f"{r['vela_seconds']:.2f}", f"{rest:.0f}", f"{r['quantize'] / nodes * 1e6:.0f}"]
            )
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compile_seconds", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help=f"comma-separated, or all; default: {','.join(DEFAULT_MODELS)}, with --growth none")
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--repeat", type=int, default=5, help="runs of ethorch; default: %(default)s")
    parser.add_argument("--arm-repeat", type=int, default=5, help="runs of the Arm backend, 0 for none; default: %(default)s")
    parser.add_argument("--growth", action="store_true", help="also measure ethorch on chains of layers and on a large network")
    parser.add_argument("--here", action="store_true", help="measure one network with ethorch in this process")
    parser.add_argument("--json", action="store_true", help="print the records as JSON")
    options = parser.parse_args(arguments)
    if options.here:
        with stdout_for_json() as stdout:
            text = json.dumps(measure_here(options.models, options.target))
            os.write(stdout, (text + "\n").encode())
        return 0
    models = options.models.split(",") if options.models else [] if options.growth else list(DEFAULT_MODELS)
    if models == ["all"]:
        from bench.models import ALL_MODELS

        models = list(ALL_MODELS)
    records = measure(models, options.target, options.repeat, options.arm_repeat)
    grown = []
    if options.growth:
        from bench.models.growing import GROWING

        grown = measure([*GROWING, LARGE], options.target, options.repeat, 0)
    if options.json:
        print(json.dumps({"provenance": provenance(), "records": records + grown}, indent=1))
        return 0
    print(f"{provenance()}; {options.target}; medians of {options.repeat}, of the Arm backend's {options.arm_repeat}\n")
    shares = [r["seconds"]["verify"] / r["whole"] for r in records if r["impl"] == "ethorch" and "error" not in r]
    if shares:
        print(f"verification takes {statistics.median(shares):.0%} of module to .pte in the median, {max(shares):.0%} at most\n")
    for found, as_table in ((records, table), (grown, growth_table)):
        if found:
            print(as_table(found), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare the accuracy of quantization in ethorch and in the Arm backend: SQNR of the fake-quantized model, seconds and nodes.

``python -m bench.accuracy [--models a,b] [--scheme int8|a16w8] [--seeds 6] [--calibration 8] [--machine 2] [--improved]
[--baseline FILE] [--json]``

Each implementation quantizes each network in a separate process, once per seed. A seed draws new weights, calibration inputs
and test inputs. SQNR pools the noise of all test inputs of a seed. The table shows the mean over the seeds and the standard error
of the difference. Use six seeds or more: with three draws of eight inputs, a range can look 4 dB better and be 6 dB worse.

``--machine`` also compiles the network of the first seed and runs it in the simulator. ``--improved`` adds a row of ethorch with
rounded weights and corrected biases. Seconds are CPU seconds (`time.process_time`) with one torch thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.compile import provenance
from bench.implementation import IMPLEMENTATIONS, flat, load_api, memory_for, run_in_child, stdout_for_json

Record = dict[str, Any]
SCHEMES = ("int8", "a16w8")
STEPS = ("prepare", "calibrate", "convert")
CONFIGS = {"ethorch": "ethorch.arm.quantizer", "arm": "executorch.backends.arm.quantizer"}
FUNCTIONS = {"int8": "get_symmetric_quantization_config", "a16w8": "get_symmetric_a16w8_quantization_config"}


def build(name: str, seed: int) -> Any:
    """Return the registered network with the weights and inputs of a seed; seed 0 is the network of the other benchmarks."""
    from bench.models import ALL_MODELS, VARIOUS

    case = {**ALL_MODELS, **VARIOUS}[name]
    return case if seed == 0 else dataclasses.replace(case, name=f"{name}@{seed}")


def measure(
    impl: str,
    model: str,
    scheme: str = "int8",
    *,
    seeds: int = 6,
    calibration: int = 8,
    fresh: int = 16,
    target: str = "ethos-u85-256",
    options: dict[str, Any] | None = None,
    machine: int = 0,
) -> Record:
    """Measure one network and one implementation in this process.

    Args:
        impl: Implementation. ``ethorch+`` is ethorch with its accuracy options.
        options: Arguments of ethorch's config function of the scheme (calibration methods).
        machine: Number of inputs of the first seed that also run in the simulator.
    """
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from ethorch.support.metrics import sqnr_db

    torch.set_num_threads(1)
    label, improved, impl = impl, impl.endswith("+"), impl.removesuffix("+")
    api = load_api(impl)
    config = getattr(import_module(CONFIGS[impl]), FUNCTIONS[scheme])
    prepare = import_module("ethorch.quantization.prepare").prepare if impl == "ethorch" else prepare_pt2e
    system_config, memory_mode = memory_for(target)
    spec = api.EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
    record: Record = {"impl": label, "model": model, "scheme": scheme, "sqnr_db": [], "seconds": dict.fromkeys(STEPS, 0.0)}
    seconds: dict[str, float] = record["seconds"]
    step = "build"
    try:
        for seed in range(seeds):
            step = "build"
            case = build(model, seed)
            float_model = case.build()
            exported = torch.export.export(float_model, case.example_inputs()).module(check_guards=False)
            start, step = time.process_time(), "prepare"
            prepared = prepare(exported, api.EthosUQuantizer(spec).set_global(config(**options or {})))
            seconds[step] += time.process_time() - start
            with torch.no_grad():
                start, step = time.process_time(), "calibrate"
                for sample in case.calibration(calibration, seed=1):
                    prepared(*sample)
                seconds[step] += time.process_time() - start
                start, step = time.process_time(), "convert"
                if improved:
                    prepared = import_module("ethorch.tuning").round_weights(prepared, case.calibration(calibration, seed=1))
                converted = convert_pt2e(prepared)
                seconds[step] += time.process_time() - start
                step = "evaluate"
                samples = case.calibration(fresh, seed=99)
                reference = torch.cat([flat(float_model(*x)) for x in samples])
                quantized = torch.cat([flat(converted(*x)) for x in samples])
            record["sqnr_db"].append(sqnr_db(reference, quantized))
            if seed < 1 and machine:
                try:
                    record["machine"] = on_machine(api, spec, float_model, converted, samples[:machine])
                except Exception as error:
                    record["machine_error"] = f"{type(error).__name__}: {error}"[:500]
            record["nodes"] = len(converted.graph.nodes)
            record["float_operators"] = float_operators(converted)
    except Exception as error:
        record["error"] = {"step": step, "type": type(error).__name__, "message": str(error)[:2000]}
    for name in seconds:
        seconds[name] /= max(seeds, 1)
    return record


def on_machine(api: Any, spec: Any, float_model: Any, converted: Any, samples: Sequence[Any]) -> dict[str, float]:
    """Return the SQNR in dB of the compiled program in the simulator, and of the fake-quantized model on the same inputs."""
    import torch
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

    from ethorch.support.metrics import sqnr_db

    edge = to_edge_transform_and_lower(
        torch.export.export(converted, samples[0]),
        partitioner=[api.EthosUPartitioner(spec)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    program = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
    host = import_module("ethorch.runtime").load(program.buffer)  # after the backend's work: both have one name
    with torch.no_grad():
        reference = torch.cat([flat(float_model(*x)) for x in samples])
        quantized = torch.cat([flat(converted(*x)) for x in samples])
    found = torch.cat([flat([y for y in host(*x) if isinstance(y, torch.Tensor)]) for x in samples])
    return {"sqnr_db": sqnr_db(reference, found), "fake_sqnr_db": sqnr_db(reference, quantized)}


def float_operators(converted: Any) -> list[str]:
    """Return the operators that have a float input that is not a dequantized value, i.e. operators that were not quantized."""
    import torch

    def is_dequantize(node: Any) -> bool:
        return "dequantize" in str(node.target)

    def is_float(node: Any) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.numel() > 1

    nodes = [n for n in converted.graph.nodes if n.op == "call_function" and "quantized_decomposed" not in str(n.target)]
    found = []
    for node in nodes:
        sources = [a for a in node.all_input_nodes if is_float(a) and a.op != "get_attr"]
        if sources and not any(map(is_dequantize, sources)):
            found.append(str(node.target))
    return sorted(found)


def quantize_seconds(record: Record) -> float:
    """Return the CPU seconds of a seed from the exported graph to the converted graph."""
    return float(sum(record["seconds"][step] for step in STEPS))


def difference(ethorch: Record, arm: Record) -> str:
    """Format the mean difference in dB over the seeds, and its standard error if there are several: ``+1.00 ± 0.20``."""
    found = [a - b for a, b in zip(ethorch["sqnr_db"], arm["sqnr_db"], strict=True)]
    return f"{fmean(found):+.2f}" + (f" ± {stdev(found) / math.sqrt(len(found)):.2f}" if len(found) > 1 else "")


def table(records: Sequence[Record]) -> str:
    """Format a row for each network: mean SQNR of both, difference, quantization seconds, nodes, and optional columns."""
    improved = any(record["impl"] == "ethorch+" for record in records)
    machine = any("machine" in record for record in records)
    head = ["network", "SQNR dB, ethorch", "Arm backend", "difference", "quantize s, ethorch", "Arm backend", "ratio"]
    head += ["nodes, ethorch", "Arm backend"]
    head += ["ethorch, options on"] * improved + ["simulator, ethorch", "Arm backend"] * machine
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    by_model: dict[str, dict[str, Record]] = {}
    for record in records:
        by_model.setdefault(record["model"], {})[record["impl"]] = record
    columns: tuple[tuple[Callable[[Record], float], str, Callable[[Record, Record], str] | None], ...] = (
        (lambda r: fmean(r["sqnr_db"]), ".2f", difference),
        (quantize_seconds, ".1f", lambda ethorch, arm: f"{quantize_seconds(ethorch) / quantize_seconds(arm):.2f}"),
        (lambda r: r["nodes"], ".0f", None),
    )
    for model, pair in by_model.items():
        cells = [model]
        for value, form, compare in columns:
            found = [value(pair[impl]) if "error" not in pair[impl] else None for impl in IMPLEMENTATIONS]
            cells += [
                f"fails: {pair[impl]['error']['step']}" if x is None else format(x, form)
                for impl, x in zip(IMPLEMENTATIONS, found, strict=True)
            ]
            if compare is not None:
                cells.append(compare(*(pair[impl] for impl in IMPLEMENTATIONS)) if None not in found else "")
        if improved:
            cells.append(f"{fmean(pair['ethorch+']['sqnr_db']):.2f}" if "error" not in pair.get("ethorch+", {"error": 0}) else "")
        if machine:
            ran = [pair[impl].get("machine", {}) for impl in IMPLEMENTATIONS]
            cells += [f"{x['sqnr_db']:.2f} ({x['sqnr_db'] - x['fake_sqnr_db']:+.2f})" if x else "" for x in ran]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    from bench.models import VARIOUS, models_named

    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="all", help='comma-separated; "various"; default: "all"')
    parser.add_argument("--impl", choices=(*IMPLEMENTATIONS, "ethorch+"), help="measure one implementation in this process")
    parser.add_argument("--scheme", choices=SCHEMES, default="int8")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--calibration", type=int, default=8, help="calibration inputs per seed")
    parser.add_argument("--fresh", type=int, default=16, help="test inputs per seed")
    parser.add_argument("--machine", type=int, default=0, help="inputs to run in the simulator, compiled for ethos-u85-256")
    parser.add_argument("--improved", action="store_true", help="add ethorch with its accuracy options")
    parser.add_argument("--options", default="", help="arguments of ethorch's config function as JSON")
    parser.add_argument("--baseline", type=Path, help="earlier --json output with the records of the Arm backend")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = models_named(parser, options.models, VARIOUS)
    if options.impl:
        with stdout_for_json() as stdout:
            record = measure(
                options.impl,
                names[0],
                options.scheme,
                seeds=options.seeds,
                calibration=options.calibration,
                fresh=options.fresh,
                machine=options.machine,
                options=json.loads(options.options) if options.options else None,
            )
            os.write(stdout, (json.dumps(record) + "\n").encode())
        return 1 if "error" in record else 0
    earlier = json.loads(options.baseline.read_text())["records"] if options.baseline else []
    known = {record["model"]: record for record in earlier if record["impl"] == "arm"}
    records: list[Record] = []
    for name in names:
        for impl in (*IMPLEMENTATIONS, *(["ethorch+"] if options.improved else [])):
            if impl == "arm" and name in known:
                records.append(known[name])
                continue
            print(f"{name} {impl} {options.scheme}", file=sys.stderr)
            common = ["--models", name, "--impl", impl, "--scheme", options.scheme, "--seeds", str(options.seeds)]
            common += ["--calibration", str(options.calibration), "--fresh", str(options.fresh)]
            if options.machine and impl != "ethorch+":
                common += ["--machine", str(options.machine)]
            if options.options and impl == "ethorch":
                common += ["--options", options.options]
            record = run_in_child("bench.accuracy", common)
            records.append({"impl": impl, "model": name, "scheme": options.scheme, **record})
            print(json.dumps(records[-1]), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"provenance": provenance(), "records": records}, indent=2))
    else:
        print(table(records))
        print()
        print(provenance())
    return 0


if __name__ == "__main__":
    sys.exit(main())

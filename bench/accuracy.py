"""How much accuracy quantization costs, ours and the incumbent's: SQNR of the fake-quantized model, seconds and nodes.

``python -m bench.accuracy [--models a,b] [--scheme int8|a16w8] [--seeds 3] [--json]``

Each network is quantized by each implementation in a process of its own, once per seed; a seed draws other weights, other
calibration inputs and other inputs to measure on, so that nothing is measured on what it was calibrated with and no
difference below a tenth of a dB is decided by one lucky draw. SQNR pools the noise of all fresh inputs of a seed; the
table shows the mean over seeds. Seconds are CPU seconds (`time.process_time`) with one torch thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from statistics import fmean
from typing import Any

from bench.compile import provenance
from bench.flows import IMPLEMENTATIONS, flat, load_api, memory_for, run_in_child, sqnr_db, stdout_for_json

Record = dict[str, Any]
SCHEMES = ("int8", "a16w8")
STEPS = ("prepare", "calibrate", "convert")
_CONFIGS = {"ethorch": "ethorch", "arm": "executorch.backends.arm.quantizer"}
_FUNCTIONS = {"int8": "get_symmetric_quantization_config", "a16w8": "get_symmetric_a16w8_quantization_config"}


def build(name: str, seed: int) -> Any:
    """The registered network with the weights and inputs of that seed; seed 0 is the network of the other benchmarks."""
    from bench.more_models import ALL_MODELS

    case = ALL_MODELS[name]
    return case if seed == 0 else dataclasses.replace(case, name=f"{name}@{seed}")


def measure(
    impl: str, model: str, scheme: str = "int8", *, seeds: int = 3, calibration: int = 8, fresh: int = 8,
    target: str = "ethos-u85-256", options: dict[str, Any] | None = None,
) -> Record:  # fmt: skip
    """One network, one implementation, in this process.

    Args:
        options: arguments for the scheme's config function (calibration methods); only ours has any.
    """
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    torch.set_num_threads(1)
    api = load_api(impl)
    config = getattr(import_module(_CONFIGS[impl]), _FUNCTIONS[scheme])
    system_config, memory_mode = memory_for(target)
    spec = api.EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
    record: Record = {"impl": impl, "model": model, "scheme": scheme, "sqnr_db": [], "seconds": dict.fromkeys(STEPS, 0.0)}
    seconds: dict[str, float] = record["seconds"]
    step = "build"
    try:
        for seed in range(seeds):
            step = "build"
            case = build(model, seed)
            float_model = case.build()
            exported = torch.export.export(float_model, case.example_inputs()).module(check_guards=False)
            start, step = time.process_time(), "prepare"
            prepared = prepare_pt2e(exported, api.EthosUQuantizer(spec).set_global(config(**options or {})))
            seconds[step] += time.process_time() - start
            with torch.no_grad():
                start, step = time.process_time(), "calibrate"
                for sample in case.calibration(calibration, seed=1):
                    prepared(*sample)
                seconds[step] += time.process_time() - start
                start, step = time.process_time(), "convert"
                converted = convert_pt2e(prepared)
                seconds[step] += time.process_time() - start
                step = "evaluate"
                samples = case.calibration(fresh, seed=99)
                reference = torch.cat([flat(float_model(*x)) for x in samples])
                quantized = torch.cat([flat(converted(*x)) for x in samples])
            record["sqnr_db"].append(sqnr_db(reference, quantized))
            record["nodes"] = len(converted.graph.nodes)
            record["float_operators"] = float_operators(converted)
    except Exception as error:
        record["error"] = {"step": step, "type": type(error).__name__, "message": str(error)[:2000]}
    for name in seconds:
        seconds[name] /= max(seeds, 1)
    return record


def float_operators(converted: Any) -> list[str]:
    """Operators that read a float tensor which was not dequantized: what quantization left alone."""
    import torch

    def dequantized(node: Any) -> bool:
        return "dequantize" in str(node.target)

    def is_float(node: Any) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.numel() > 1

    nodes = [n for n in converted.graph.nodes if n.op == "call_function" and "quantized_decomposed" not in str(n.target)]
    found = []
    for node in nodes:
        sources = [a for a in node.all_input_nodes if is_float(a) and a.op != "get_attr"]
        if sources and not any(map(dequantized, sources)):
            found.append(str(node.target))
    return sorted(found)


def table(records: Sequence[Record]) -> str:
    """One row per network: mean SQNR of both, the difference, quantize seconds and nodes."""
    lines = [
        "| network | SQNR dB, ours | theirs | difference | quantize s, ours | theirs | ratio | nodes, ours | theirs |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    by_model: dict[str, dict[str, Record]] = {}
    for record in records:
        by_model.setdefault(record["model"], {})[record["impl"]] = record
    columns: tuple[tuple[Callable[[Record], float], str, Callable[[float, float], str] | None], ...] = (
        (lambda r: fmean(r["sqnr_db"]), ".2f", lambda ours, theirs: f"{ours - theirs:+.2f}"),
        (lambda r: sum(r["seconds"][step] for step in STEPS), ".1f", lambda ours, theirs: f"{ours / theirs:.2f}"),
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
                cells.append(compare(*found) if None not in found else "")  # type: ignore[arg-type]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    from bench.more_models import ALL_MODELS

    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(ALL_MODELS))
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, help="one implementation, in this process")
    parser.add_argument("--scheme", choices=SCHEMES, default="int8")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--calibration", type=int, default=8, help="calibration inputs per seed")
    parser.add_argument("--fresh", type=int, default=8, help="inputs to measure on, per seed")
    parser.add_argument("--options", default="", help="arguments of our config function as JSON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    unknown = [name for name in names if name not in ALL_MODELS]
    if unknown:
        parser.error(f"unknown models {', '.join(unknown)}; known: {', '.join(ALL_MODELS)}")
    if options.impl:
        with stdout_for_json() as stdout:
            record = measure(
                options.impl, names[0], options.scheme, seeds=options.seeds, calibration=options.calibration,
                fresh=options.fresh, options=json.loads(options.options) if options.options else None,
            )  # fmt: skip
            os.write(stdout, (json.dumps(record) + "\n").encode())
        return 1 if "error" in record else 0
    records = []
    for name in names:
        for impl in IMPLEMENTATIONS:
            print(f"{name} {impl} {options.scheme}", file=sys.stderr)
            common = ["--models", name, "--impl", impl, "--scheme", options.scheme, "--seeds", str(options.seeds)]
            common += ["--calibration", str(options.calibration), "--fresh", str(options.fresh)]
            if options.options and impl == "ethorch":
                common += ["--options", options.options]
            record = run_in_child("bench.accuracy", common)
            records.append({"impl": impl, "model": name, "scheme": options.scheme, **record})
    if options.json:
        print(json.dumps({"provenance": provenance(), "records": records}, indent=2))
    else:
        print(table(records))
        print()
        print(provenance())
    return 0


if __name__ == "__main__":
    sys.exit(main())

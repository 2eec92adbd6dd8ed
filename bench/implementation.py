"""Measure one network in one implementation, in a separate process.

``python -m bench.implementation --impl ethorch|arm --model NAME --target T --json``

The code is that of a typical user; only the import lines differ between the implementations. They never share a process because
both backends are named ``EthosUBackend``, and ExecuTorch finds a backend by its class name.

Times are CPU seconds of this process (`time.process_time`) with one torch thread, so that other load has little effect. Vela's
estimates come from a wrapper of ``ethosu.regor.compile``, through which both implementations call Vela. No figure is measured on
a device.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

IMPLEMENTATIONS = ("ethorch", "arm")

#: The configurations that the figures in README.md and docs are for: system config, memory mode.
MEMORY: dict[str, tuple[str, str]] = {
    "ethos-u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "ethos-u65": ("Ethos_U65_High_End", "Dedicated_Sram_384KB"),
    "ethos-u85": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"),
}


def memory_for(target: str) -> tuple[str, str]:
    """Return the system config and the memory mode that benchmarks use for a target."""
    return MEMORY["-".join(target.split("-")[:2])]


@dataclass(frozen=True)
class Api:
    """The five names that the user imports from an implementation."""

    EthosUCompileSpec: Any
    EthosUPartitioner: Any
    EthosUQuantizer: Any
    get_symmetric_quantization_config: Any
    EthosUBackend: Any


_MODULES = {
    "ethorch": {
        "EthosUCompileSpec": "ethorch",
        "EthosUPartitioner": "ethorch",
        "EthosUQuantizer": "ethorch",
        "get_symmetric_quantization_config": "ethorch.arm.quantizer",
        "EthosUBackend": "ethorch.backend",
    },
    "arm": {
        "EthosUCompileSpec": "executorch.backends.arm.ethosu",
        "EthosUPartitioner": "executorch.backends.arm.ethosu",
        "EthosUQuantizer": "executorch.backends.arm.quantizer",
        "get_symmetric_quantization_config": "executorch.backends.arm.quantizer",
        "EthosUBackend": "executorch.backends.arm.ethosu.backend",
    },
}


def load_api(impl: str) -> Api:
    """Import one implementation. Raise RuntimeError if the process has imported the other."""
    for other, modules in _MODULES.items():
        if other != impl and modules["EthosUBackend"] in sys.modules:
            raise RuntimeError(f"{other} is in this process already; run {impl} in a process of its own")
    names = {name: getattr(import_module(module), name) for name, module in _MODULES[impl].items()}
    return Api(**names)


@dataclass
class VelaRun:
    """The input and the estimates of one call of ``ethosu.regor.compile``."""

    accelerator: str
    tosa: bytes
    system_config: str
    options: str
    verbose: bool
    seconds: float
    report: dict[str, Any]

    def compile_with_database(self) -> Any:
        """Repeat the call with Vela's database enabled, and return the result."""
        from ethosu import regor

        options = self.options
        if "enable_db=true" not in options:
            options = options.replace("[compiler]\n", "[compiler]\nenable_db=true\n", 1)
        return regor.compile(self.accelerator, self.tosa, "TOSA", self.system_config, options=options, verbose=False)

    def operator_rows(self) -> list[dict[str, str]]:
        """Compile again with Vela's database enabled, and return the estimates per scheduled operator, in stream order."""
        tables = self.compile_with_database().opt_database.tables
        source = {row[0]: dict(zip(tables["source"].header, row, strict=False)) for row in tables["source"].data}
        rows = []
        for values in tables["perf"].data:
            row = dict(zip(tables["perf"].header, values, strict=False))
            origin = source.get(row["source_id"], {})
            rows.append(
                {
                    **row,
                    "tosa_operator": origin.get("operator", ""),
                    "tosa_index": origin.get("ext_key", ""),
                    "ofm": "x".join(origin.get(f"ofm_{axis}", "?") for axis in "hwd"),
                }
            )
        return rows


def _report(compiled: Any) -> dict[str, Any]:
    """Return Vela's performance report as plain data, in bytes and NPU clock cycles."""
    report = compiled.perf_report
    memories = {
        str(name): {"peak_bytes": memory.peakUsage, "access_cycles": memory.totalAccessCycles}
        for name, memory in report.memories.items()
    }
    return {
        "npu_cycles": report.npuCycles,
        "total_cycles": report.totalCycles,
        "mac_count": report.macCount,
        "npu_operators": report.npuOps,
        "cascades": report.cascades,
        "memories": memories,
        "sram_bytes": sum(m["peak_bytes"] for name, m in memories.items() if name.lower() == "sram"),
        "dram_bytes": sum(m["peak_bytes"] for name, m in memories.items() if name.lower() == "dram"),
        "read_only_bytes": report.readOnlyPeakUsage,
        "original_weight_bytes": report.originalWeights,
        "encoded_weight_bytes": report.encodedWeights,
        "command_bytes": memoryview(compiled.command_stream).nbytes,
    }


class Recorder:
    """A recorder of the calls of Vela and of one backend's ``preprocess``."""

    def __init__(self) -> None:
        self.preprocess_seconds = 0.0
        self.delegates: list[VelaRun] = []  # the last Vela run of each preprocess call: what went into the program
        self.vela_seconds = 0.0
        self.vela_runs = 0
        self._latest: VelaRun | None = None

    def watch_vela(self) -> None:
        """Wrap ``ethosu.regor.compile``. Call this before the import of an implementation."""
        from ethosu import regor

        compile_ = regor.compile

        def call_and_record(accelerator: str, buffer: Any, fmt: str, system_config: str, *rest: Any, **named: Any) -> Any:
            tosa = bytes(buffer)
            start = time.process_time()
            compiled = compile_(accelerator, buffer, fmt, system_config, *rest, **named)
            seconds = time.process_time() - start
            options = named.get("options", rest[0] if rest else "")
            self.vela_seconds += seconds
            self.vela_runs += 1
            self._latest = VelaRun(accelerator, tosa, system_config, options, False, seconds, _report(compiled))
            return compiled

        regor.compile = call_and_record

    def watch_preprocess(self, backend: Any) -> None:
        """Wrap the static method ``backend.preprocess``."""
        preprocess = backend.preprocess

        def call_and_record(*arguments: Any, **named: Any) -> Any:
            self._latest = None
            start = time.process_time()
            try:
                return preprocess(*arguments, **named)
            finally:
                self.preprocess_seconds += time.process_time() - start
                if self._latest is not None:
                    self.delegates.append(self._latest)

        backend.preprocess = staticmethod(call_and_record)


@dataclass
class Steps:
    """The CPU seconds of each step, and the peak memory of the process after it."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    current: str = ""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.current = name
        start = time.process_time()
        yield
        self.seconds[name] = time.process_time() - start
        self.peak_bytes[name] = peak_bytes()


def convert_in_steps(
    graph: torch.fx.GraphModule,
    quantizer: Any,
    samples: Iterable[tuple[Any, ...]],
    step: Callable[[str], AbstractContextManager[None]],
    prepare: Callable[[torch.fx.GraphModule, Any], torch.fx.GraphModule] | None = None,
) -> torch.fx.GraphModule:
    """Convert an exported graph with torchao's steps, each within ``step``; ``prepare`` replaces torchao's function."""
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with step("prepare"):
        prepared = (prepare or prepare_pt2e)(graph, quantizer)
    with step("calibrate"), torch.no_grad():
        for sample in samples:
            prepared(*sample)
    with step("convert"):
        converted: torch.fx.GraphModule = convert_pt2e(prepared)
    return converted


def peak_bytes() -> int:
    """Return the peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def flat(outputs: Any) -> Any:
    """Return all outputs of a model as one vector."""
    import torch

    return torch.cat([x.flatten() for x in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)])


@dataclass
class Compiled:
    """The results of a flow for further use in the same process."""

    float_model: Any
    quantized_model: Any
    program: Any
    tosa: list[bytes]
    delegates: list[VelaRun]


BOUNDARY = ("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel")


def _cpu_operators(edge: Any) -> tuple[list[str], int]:
    """Return the CPU operators as "name: target", and the number of quantize and dequantize nodes, which they exclude."""
    left, boundary = [], 0
    for node in edge.exported_program().graph.nodes:
        target = str(getattr(node.target, "_op", node.target))  # an edge operator's own str() is a whole schema
        if node.op != "call_function" or "getitem" in target or "executorch_call_delegate" in target:
            continue
        if any(name in target for name in BOUNDARY):
            boundary += 1
        else:
            left.append(f"{node.name}: {target}")
    return left, boundary


def run(
    impl: str,
    model: str,
    target: str,
    *,
    calibration: int = 8,
    evaluation: int = 4,
    operator_rows: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> tuple[dict[str, Any], Compiled | None]:
    """Compile `model` for `target`, and return the record and the compiled program, or None if it failed."""
    import torch
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

    from bench.models import ALL_MODELS, VARIOUS

    import_module("torchao.quantization.pt2e.quantize_pt2e")  # before time is measured, as torch
    torch.set_num_threads(1)
    recorder = Recorder()
    recorder.watch_vela()
    start = time.process_time()
    api = load_api(impl)
    import_seconds = time.process_time() - start
    recorder.watch_preprocess(api.EthosUBackend)

    case = {**ALL_MODELS, **VARIOUS}[model]
    float_model = case.build()
    inputs = case.example_inputs()
    samples = case.calibration(calibration)
    system_config, memory_mode = memory_for(target)
    steps = Steps()
    record: dict[str, Any] = {
        "impl": impl,
        "model": model,
        "target": target,
        "system_config": system_config,
        "memory_mode": memory_mode,
        "import_seconds": import_seconds,
        "start_peak_bytes": peak_bytes(),
        "seconds": steps.seconds,
        "peak_bytes": steps.peak_bytes,
    }

    def step(name: str) -> Any:
        progress(name)
        return steps(name)

    try:
        compile_spec = api.EthosUCompileSpec(
            target, system_config=system_config, memory_mode=memory_mode, extra_flags=["--optimise", "Performance"]
        )
        with step("export"):
            graph_module = torch.export.export(float_model, inputs).module(check_guards=False)
        quantizer = api.EthosUQuantizer(compile_spec)
        quantizer.set_global(api.get_symmetric_quantization_config(is_per_channel=True))
        converted = convert_in_steps(graph_module, quantizer, samples, step)
        with step("reexport"):
            exported = torch.export.export(converted, inputs)
        with step("to_edge_transform_and_lower"):
            edge = to_edge_transform_and_lower(
                exported,
                partitioner=[api.EthosUPartitioner(compile_spec)],
                compile_config=EdgeCompileConfig(_check_ir_validity=False),
            )
        left, boundary = _cpu_operators(edge)
        with step("to_executorch"):
            program = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
        if impl == "ethorch":
            from ethorch.backend.build import build_pte

            seen = recorder.vela_runs, recorder.vela_seconds
            with step("build"):  # the same .pte without the three steps above
                build_pte(converted, inputs, compile_spec)
            recorder.vela_runs, recorder.vela_seconds = seen
    except Exception as error:
        record["error"] = {"step": steps.current, "type": type(error).__name__, "message": str(error)[:2000]}
        return record, None

    reports = [delegate.report for delegate in recorder.delegates]
    total = {key: sum(r[key] for r in reports) for key in (reports[0] if reports else {}) if key != "memories"}
    for peak in ("sram_bytes", "dram_bytes"):  # delegates run one after the other and share their arena
        total[peak] = max((r[peak] for r in reports), default=0)
    record |= {
        "preprocess_seconds": recorder.preprocess_seconds,
        "vela_seconds": recorder.vela_seconds,
        "vela_runs": recorder.vela_runs,
        "delegates": len(recorder.delegates),
        "cpu_operators": left,
        "boundary_operators": boundary,
        "quantized_nodes": len(converted.graph.nodes),
        "exported_nodes": len(exported.graph.nodes),
        "pte_bytes": len(program.buffer),
        "tosa_bytes": [len(delegate.tosa) for delegate in recorder.delegates],
        "vela": total,
        "vela_by_delegate": reports,
    }
    progress("evaluate")
    with torch.no_grad():
        fresh = case.calibration(evaluation, seed=99)
        reference = torch.cat([flat(float_model(*x)) for x in fresh])
        quantized = torch.cat([flat(converted(*x)) for x in fresh])
    from ethorch.support.metrics import sqnr_db  # here, since every step before is measured

    record["sqnr_db"] = sqnr_db(reference, quantized)
    record["distinct_outputs"] = len(quantized.unique())
    if operator_rows:
        record["operator_rows"] = [delegate.operator_rows() for delegate in recorder.delegates]
    tosa = [delegate.tosa for delegate in recorder.delegates]
    return record, Compiled(float_model, converted, program, tosa, recorder.delegates)


def run_in_child(module: str, arguments: list[str]) -> dict[str, Any]:
    """Run ``python -m module arguments --json`` and return its record, or an error record if it crashes."""
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as directory:
        errors = Path(directory) / "stderr"
        with errors.open("w") as stderr:
            child = subprocess.run(
                [sys.executable, "-m", module, *arguments, "--json"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=root,
                env=environment,
                check=False,
                text=True,
            )
        try:
            return json.loads(child.stdout)
        except json.JSONDecodeError:
            tail = errors.read_text()[-2000:]
            return {"error": {"step": "process", "type": f"exit status {child.returncode}", "message": tail}}


@contextmanager
def stdout_for_json() -> Iterator[int]:
    """Redirect the output of libraries to stderr, and yield a descriptor of the real stdout."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        yield real
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.implementation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--calibration", type=int, default=8, help="number of calibration inputs")
    parser.add_argument("--rows", action="store_true", help="add Vela's estimate per operator")
    parser.add_argument("--save", type=Path, help="directory for the .pte and the .tosa of each delegate")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    options = parser.parse_args(arguments)

    from bench.models import VARIOUS, models_named

    (model,) = models_named(parser, options.model, VARIOUS)
    with stdout_for_json() as stdout:
        record, compiled = run(
            options.impl,
            model,
            options.target,
            calibration=options.calibration,
            operator_rows=options.rows,
            progress=lambda step: print(f"{model} {options.target} {options.impl}: {step}", file=sys.stderr),
        )
        if options.save and compiled:
            options.save.mkdir(parents=True, exist_ok=True)
            stem = f"{model}.{options.target}.{options.impl}"
            (options.save / f"{stem}.pte").write_bytes(compiled.program.buffer)
            for index, tosa in enumerate(compiled.tosa):
                (options.save / f"{stem}.{index}.tosa").write_bytes(tosa)
        text = json.dumps(record, indent=None if options.json else 2)
        os.write(stdout, (text + "\n").encode())
    return 1 if "error" in record else 0


if __name__ == "__main__":
    sys.exit(main())

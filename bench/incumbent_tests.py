"""The Arm backend's own operator, module and model tests as cases for both implementations.

``python -m bench.incumbent_tests [--folders ops,modules] [--files test_add] [--targets t,u] [--per-function 16] -o FILE.jsonl``

The tests are in executorch's wheel. Pytest collects them as they are; in place of a pipeline's run, its module and inputs are
compiled by ethorch for each target, run on the simulator, and every byte of every delegate is compared with the TOSA reference
model. The Arm backend compiles each case that ethorch does not fully delegate, for its own target of the pipeline; operators left
on the CPU are counted in both ``.pte`` files. Networks get random weights in place of downloads. Cases that the
file FILE.jsonl already contains are skipped.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.implementation import BOUNDARY, memory_for

Record = dict[str, Any]
TARGETS = ("ethos-u55-32", "ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
FOLDERS = ("ops", "modules", "models", "quantizer", "misc")
RECORDED = "recorded_settings"
ROOT = Path(__file__).resolve().parent.parent


def tests_folder() -> Path:
    """Return the folder of the Arm backend's tests in the installed wheel.

    Raises:
        FileNotFoundError: executorch is not installed, or its wheel has no tests.
    """
    spec = find_spec("executorch")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "backends" / "arm" / "test"
        if folder.is_dir():
            return folder
    raise FileNotFoundError("executorch/backends/arm/test is not installed; the wheel of executorch 1.5.1 contains it.")


def list_files(folders: Sequence[str], names: Sequence[str]) -> list[Path]:
    """Return the test files of ``folders`` whose name begins with one of ``names``, sorted."""
    root = tests_folder()
    files = [file for folder in folders for file in sorted((root / folder).rglob("test_*.py"))]
    return [file for file in files if file.name.startswith(tuple(names))]


class Measured(Exception):
    """Ends a test that lowers without a pipeline, after its case has been measured."""


class Plugin:
    """A pytest plugin that selects the quantized cases, at most ``limit`` of each function, and measures them.

    Of a file with tests for Ethos-U, only those are cases. The quantized TOSA tests of other files are cases for every target.
    """

    def __init__(self, path: Path, targets: Sequence[str], limit: int, compare: bool):
        self.path, self.targets, self.limit, self.compare = path, targets, limit, compare
        self.finished, self.records = read_states(path)
        self.case, self.expected_failure, self.is_for_npu = "", "", True
        self.npu_files: set[Path] = set()
        self.measured: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        counts: Counter[str] = Counter()
        self.npu_files = {item.path for item in items if _names_npu(item)}
        selected = []
        for item in items:
            function = item.nodeid.partition("[")[0]
            if not (_names_npu(item) if item.path in self.npu_files else _is_quantized(item)):
                continue
            item.own_markers = [marker for marker in item.own_markers if marker.name != "skip"]
            counts[function] += 1
            if counts[function] <= self.limit and not self._is_done(_case(item)):
                selected.append(item)
        items[:] = selected

    def _is_done(self, case: str) -> bool:
        if not self.compare:
            return case in self.finished
        return case in self.finished and not any(needs_comparison(record) for record in self.records if record["case"] == case)

    def pytest_runtest_setup(self, item: Any) -> None:
        import torch

        self.case, self.is_for_npu = _case(item), item.path in self.npu_files
        marker = item.get_closest_marker("xfail")
        reason = str(marker.kwargs.get("reason", "")) if marker else ""
        self.expected_failure = "" if "Did not find Corstone" in reason else reason
        torch.manual_seed(0)
        _append(self.path, {"case": self.case, "state": "started"})

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "teardown":
            _append(self.path, {"case": self.case, "state": "finished"})
        elif report.failed and self.case not in self.measured:  # what a test checks afterwards has no subject here
            self._record_test_failure(self.case, str(report.longrepr))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._record_test_failure(report.nodeid.removesuffix(".py"), str(report.longrepr))

    def _record_test_failure(self, case: str, error: str) -> None:
        _append(self.path, {"case": case, "target": "all", "status": "not run", "error": error[-800:]})

    def measure(self, pipeline: Any) -> None:
        """Write a record of the pipeline's case for each target, in place of running the pipeline."""
        kind = type(pipeline).__name__
        is_for_npu = "EthosU" in kind
        if is_for_npu != self.is_for_npu:
            return
        self.measured.add(self.case)
        families = ("u85",) if "U85" in kind else ("u55", "u65") if is_for_npu else ("u55", "u65", "u85")
        arm: dict[str, Record] = {}
        for target in [target for target in self.targets if target.split("-")[1].startswith(families)]:
            record = {"case": self.case, "target": target, **_own_record(pipeline, target)}
            if self.expected_failure:
                record["expected_failure"] = self.expected_failure
            family = "u85" if "u85" in target else "u55"
            if self.compare and needs_comparison(record):
                arm[family] = arm.get(family) or (_arm_record(pipeline) if is_for_npu else _arm_record_of_tosa(pipeline, family))
                record["arm"] = arm[family]
            _append(self.path, record)


def _names_npu(item: Any) -> bool:
    return any(name in item.nodeid.partition("[")[0].lower() for name in ("_u55", "_u65", "_u85"))


def _is_quantized(item: Any) -> bool:
    name = item.nodeid.rpartition("::")[2].partition("[")[0]
    return not any(word in name for word in ("_FP", "_fp", "vgf", "bf16", "fp16"))


def needs_comparison(record: Record) -> bool:
    """Return True if the Arm backend may delegate more of the case, and has not compiled it yet."""
    return not record.get("arm") and bool(record.get("cpu") or record["status"] not in ("ok", "differs", "not run"))


def _case(item: Any) -> str:
    return f"{item.path.parent.name}/{item.path.stem}::{item.name}"


def _append(path: Path, record: Record) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def read(path: Path) -> list[Record]:
    """Return the last record of each case and target of a file; a case that ended its process has a record of that."""
    return read_states(path)[1]


def read_states(path: Path) -> tuple[set[str], list[Record]]:
    """Return the cases of a file that were finished or ended their process, and their records."""
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


def cpu_operators(pte: bytes) -> tuple[int, dict[str, int]]:
    """Return the number of delegates of a ``.pte`` and its CPU operators with their counts, without quantize and dequantize."""
    from ethorch.formats import pte as reader

    program = reader.read(pte)
    calls = [call for method in program.methods.values() for call in method.calls]
    names = Counter(call.operator for call in calls if call.delegate is None)
    kept = {name: n for name, n in names.items() if not any(boundary in name for boundary in BOUNDARY)}
    return sum(call.delegate is not None for call in calls), kept


def _own_quantizer(pipeline: Any, spec: Any) -> Any:
    """Return ethorch's quantizer with the settings of the pipeline's quantizer."""
    from ethorch import EthosUQuantizer

    quantizer = EthosUQuantizer(spec)
    for name, arguments in _settings(pipeline):
        getattr(quantizer, name)(*(_own_config(x) if _is_config(x) else x for x in arguments))
    return quantizer


def _is_config(value: Any) -> bool:
    return hasattr(value, "input_activation") and hasattr(value, "weight")


def _settings(pipeline: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the calls of ``set_*`` that configured the pipeline's quantizer: names and arguments, the global config first."""
    recorded = list(getattr(pipeline.quantizer, RECORDED, ()))
    if not any(name == "set_global" for name, _ in recorded):
        stage = pipeline._stages[pipeline.find_pos("quantize")].args[0]
        inner = getattr(pipeline.quantizer, "quantizer", pipeline.quantizer)
        config = getattr(inner, "global_config", None) or getattr(stage, "quantization_config", None)
        recorded.insert(0, ("set_global", (config,)))
    return recorded


def _record_settings(kind: type) -> None:
    """Let quantizers of ``kind`` record the calls of their ``set_*`` methods."""

    def recording(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            calls = self.__dict__.setdefault(RECORDED, [])
            calls.append((method.__name__, (*arguments, *named.values())))
            return method(self, *arguments, **named)

        return call

    for name in [name for name in vars(kind) if name.startswith("set_")]:
        setattr(kind, name, recording(getattr(kind, name)))


def _own_config(config: Any) -> Any:
    import torch

    from ethorch import (
        QuantizationConfig,
        get_symmetric_a8w4_quantization_config,
        get_symmetric_a16w8_quantization_config,
        get_symmetric_quantization_config,
    )

    if config is None:
        return None
    activation = getattr(config.input_activation, "dtype", None)
    output = getattr(config.output_activation, "dtype", activation)
    weight, per_channel = config.weight, False
    if weight is not None:
        per_channel = weight.qscheme in (torch.per_channel_symmetric, torch.per_channel_affine)
    if activation == torch.int16 and output == torch.int16:
        return get_symmetric_a16w8_quantization_config(is_per_channel=per_channel)
    if activation == torch.int8 and weight is not None and weight.quant_max == 7:
        return get_symmetric_a8w4_quantization_config(is_per_channel=per_channel)
    if activation in (torch.int8, None):
        return get_symmetric_quantization_config(is_per_channel=per_channel)
    return QuantizationConfig(config.input_activation, config.output_activation, weight, config.bias)


def _quantize(model: Any, inputs: Any, quantizer: Any, pipeline: Any) -> tuple[Any, str]:
    """Return the converted model, and its calibration samples in words: those of the test.

    If the test's samples do not reach a branch or a loop's body, multiples of them are samples, too.
    """
    import torch

    from ethorch.errors import QuantizationError

    stage = pipeline._stages[pipeline.find_pos("quantize")].args[0]
    samples = list(copy.deepcopy(getattr(stage, "calibration_samples", None) or [inputs]))
    is_qat, fold_quantize = bool(getattr(stage, "is_qat", False)), getattr(stage, "fold_quantize", True)

    def quantize(samples: list[Any]) -> Any:
        exported = torch.export.export(copy.deepcopy(model), inputs).module(check_guards=False)
        return quantizer.quantize_with_submodules(exported, copy.deepcopy(samples), is_qat, fold_quantize)

    try:
        return quantize(samples), "samples of the test"
    except QuantizationError as error:
        if error.id not in ("calibration.none", "submodules.unreached_branch"):
            raise
    multiples = [
        tuple(factor * x if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in sample)
        for factor in (-1, 8)
        for sample in samples
    ]
    return quantize(samples + multiples), "samples of the test and multiples of them"


def _own_record(pipeline: Any, target: str) -> Record:
    """Compile and run one case; record its status, delegates, CPU operators, reasons, differing bytes and CPU seconds."""
    import torch

    from bench.implementation import flat
    from bench.zoo.run import Watched, differing
    from ethorch import EthosUCompileSpec, flow, host
    from ethorch.errors import EthorchError
    from ethorch.formats.payload import DelegatePayload
    from ethorch.metrics import sqnr_db

    start, step = time.process_time(), "quantize"
    record: Record = {"status": "ok"}
    try:
        system_config, memory_mode = memory_for(target)
        spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
        model = copy.deepcopy(pipeline.tester.original_module).eval()
        inputs = tuple(copy.deepcopy(pipeline.test_data))
        quantizer = _own_quantizer(pipeline, spec)
        with torch.no_grad():
            reference = copy.deepcopy(model)(*copy.deepcopy(inputs))
        quantized, record["calibration"] = _quantize(model, inputs, quantizer, pipeline)
        step = "compile"
        build = flow.build(quantized, inputs, spec)
        delegates, cpu = cpu_operators(build.pte)
        record |= {"delegates": delegates, "cpu": cpu}
        record["reasons"] = sorted(f"{r.origin.target} ({r.reason.id})" for r in build.partition.refusals)
        step = "run"
        machines: dict[DelegatePayload, Watched] = {}

        def watched(payload: DelegatePayload) -> Watched:
            return machines.setdefault(payload, Watched(payload))

        outputs = host.load(build.pte, machine=watched)(*copy.deepcopy(inputs))
        step = "reference"
        executed = [delegate for delegate in build.delegates if delegate.payload in machines]
        record["differing"] = sum(differing(d, machines[d.payload], _run_reference) for d in executed)
        record["bytes"] = sum(len(data) for machine in machines.values() for data in machine.gave)
        floats = [torch.as_tensor(x).double() for x in outputs]
        try:
            record["sqnr_db"] = float(sqnr_db(flat(reference).double(), flat(floats).double()))
        except Exception:  # results that are no floats
            record["sqnr_db"] = None
        if record["differing"]:
            record["status"] = "differs"
    except EthorchError as error:
        record |= {"status": f"refused: {step}", "error": str(error)[:800]}
    except Exception as error:
        record |= {"status": f"failed: {step}", "error": f"{type(error).__name__}: {str(error)[:800]}"}
    return record | {"seconds": round(time.process_time() - start, 2)}


def _run_reference(tosa: bytes, arrays: Sequence[Any]) -> list[Any]:
    """Run a graph in the TOSA reference model, in this process: a graph that aborts the model ends the process of its case."""
    import tosa_reference_model as model

    results, status = model.run(tosa, list(arrays))
    if int(status) != int(model.GraphStatus.TOSA_VALID):
        raise RuntimeError(f"the reference model returns {status}")
    return list(results)


def _arm_record(pipeline: Any) -> Record:
    """Compile one case with the Arm backend: ``delegates`` and ``cpu`` of its ``.pte``, or ``error``."""
    start = time.process_time()
    try:
        for stage in list(pipeline._stages):
            if stage.id.split(".")[0] in (
                "quantize",
                "export",
                "to_edge",
                "partition",
                "to_edge_transform_and_lower",
                "to_executorch",
            ):
                stage()
            if stage.id.startswith("to_executorch"):
                break
        delegates, cpu = cpu_operators(pipeline.tester.get_artifact().buffer)
        return {"delegates": delegates, "cpu": cpu, "seconds": round(time.process_time() - start, 2)}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def _arm_record_of_tosa(pipeline: Any, family: str) -> Record:
    """Compile a case of a TOSA test with the Arm backend for its NPU of ``family``: see :func:`_arm_record`."""
    from executorch.backends.arm.quantizer import EthosUQuantizer
    from executorch.backends.arm.test import common
    from executorch.backends.arm.test.tester.arm_tester import ArmTester
    from executorch.backends.arm.test.tester.quantize import ArmQuantize
    from executorch.backends.test.harness.stages import StageType

    start = time.process_time()
    try:
        spec = common.get_u85_compile_spec() if family == "u85" else common.get_u55_compile_spec()
        quantizer = EthosUQuantizer(spec)
        for name, arguments in _settings(pipeline):
            getattr(quantizer, name)(*arguments)
        tester = ArmTester(pipeline.tester.original_module, example_inputs=pipeline.test_data, compile_spec=spec)
        tester.quantize(ArmQuantize(quantizer, set_global=False)).export().to_edge_transform_and_lower().to_executorch()
        delegates, cpu = cpu_operators(tester.get_artifact(StageType.TO_EXECUTORCH).buffer)
        return {"delegates": delegates, "cpu": cpu, "seconds": round(time.process_time() - start, 2)}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


class _BarePipeline:
    """A test's use of ``ArmTester`` without a pipeline, with the attributes that a case is read from."""

    def __init__(self, tester: Any, stage: Any):
        from executorch.backends.arm.quantizer import TOSAQuantizer, get_symmetric_quantization_config

        self.tester, self.test_data = tester, tester.example_inputs
        self.quantizer = getattr(stage, "quantizer", None) or TOSAQuantizer(tester.compile_spec)
        if stage is None:
            self.quantizer.set_global(get_symmetric_quantization_config())
        self._stages = [self]
        self.args = (stage,)

    def find_pos(self, name: str) -> int:
        return 0


def run_here(files: Sequence[Path], path: Path, targets: Sequence[str], limit: int, compare: bool) -> int:
    """Run the cases of ``files`` in this process and append their records to ``path``; return pytest's exit status."""
    import pytest
    import torch
    from executorch.backends.arm.quantizer import TOSAQuantizer
    from executorch.backends.arm.test.tester import test_pipeline as pipelines
    from executorch.backends.arm.test.tester.arm_tester import ArmTester

    from bench.random_weights import use_random_weights

    torch.set_num_threads(1)
    _record_settings(TOSAQuantizer)
    use_random_weights()
    plugin = Plugin(path, targets, limit, compare)
    quantize = ArmTester.quantize
    is_comparing = [False]

    def measure_pipeline(pipeline: Any) -> None:
        is_comparing[0] = True  # the Arm backend's own compilation of the case uses ArmTester
        try:
            plugin.measure(pipeline)
        finally:
            is_comparing[0] = False

    @functools.wraps(quantize)  # a pipeline reads the name
    def measure_tester(tester: Any, stage: Any = None) -> Any:
        if is_comparing[0]:
            return quantize(tester, stage)
        measure_pipeline(_BarePipeline(tester, stage))
        raise Measured

    for kind in (pipelines.BasePipeline, pipelines.TOSAPipeline, pipelines.VgfPipeline, pipelines.PassPipeline):
        kind.run = lambda self: None
    measured = (pipelines.EthosU55PipelineINT, pipelines.EthosU85PipelineINT, pipelines.EthosU65PipelineINT)
    for kind in (*measured, pipelines.TosaPipelineINT, pipelines.QuantizationPipeline):
        kind.run = measure_pipeline
    ArmTester.quantize = measure_tester
    arguments = [
        *map(str, files),
        "--runxfail",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(tests_folder()),
        "--import-mode=importlib",
    ]
    arguments += ["-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "--tb=short"]
    return pytest.main(arguments, plugins=[plugin])


def table(records: Sequence[Record]) -> str:
    """Return Markdown: counts by target and status, cases with more CPU operators than the Arm backend, and failures."""
    targets = list(dict.fromkeys(record["target"] for record in records))
    statuses = list(dict.fromkeys(record["status"] for record in records))
    lines = [f"| target | cases | {' | '.join(statuses)} | bytes compared | more on the CPU than the Arm backend |"]
    lines.append("|---" * (len(statuses) + 4) + "|")
    for target in targets:
        rows = [record for record in records if record["target"] == target]
        counts = Counter(record["status"] for record in rows)
        more = sum(has_more_on_cpu(record) for record in rows)
        compared = sum(record.get("bytes", 0) for record in rows)
        lines.append(f"| {target} | {len(rows)} | {' | '.join(str(counts[s]) for s in statuses)} | {compared:,} | {more} |")
    for record in records:
        if record["status"] != "ok":
            lines.append(f"- {record['case']}, {record['target']}: {record['status']}. {record.get('error', '')[:300]}")
        elif has_more_on_cpu(record):
            lines.append(f"- {record['case']}, {record['target']}: {record['reasons']}; Arm backend: {record['arm'].get('cpu')}")
    return "\n".join(lines)


def has_more_on_cpu(record: Record) -> bool:
    """Return True if the Arm backend compiled the case and left fewer operators on the CPU."""
    arm = record.get("arm") or {}
    if record["status"].startswith(("failed", "refused")):
        return "cpu" in arm
    return "cpu" in arm and sum(record.get("cpu", {}).values()) > sum(arm["cpu"].values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("bench.incumbent_tests", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folders", default=",".join(FOLDERS))
    parser.add_argument("--files", default="test_", help="beginnings of file names, separated by commas")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--per-function", type=int, default=16, help="cases of each test function")
    parser.add_argument("--no-arm", action="store_true", help="do not compile with the Arm backend beside")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds of wall clock for a process")
    parser.add_argument("--memory", type=float, default=12, help="GiB of address space for a process")
    parser.add_argument("-o", "--output", type=Path, default=Path("incumbent_tests.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of finished files and exit")
    parser.add_argument("--files-per-process", type=int, default=8)
    parser.add_argument("--here", type=Path, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.table:
        print(table([record for path in options.table for record in read(path)]))
        return 0
    targets = options.targets.split(",")
    if options.here:
        return run_here(options.here, options.output, targets, options.per_function, not options.no_arm)
    limit = int(options.memory * 2**30)
    files = list_files(options.folders.split(","), options.files.split(","))
    for first in range(0, len(files), options.files_per_process):
        group = files[first : first + options.files_per_process]
        command = [sys.executable, "-m", "bench.incumbent_tests", "--here", *map(str, group), "--targets", options.targets]
        command += ["--per-function", str(options.per_function), "-o", str(options.output)] + ["--no-arm"] * options.no_arm
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        is_unfinished = True
        while is_unfinished:  # a case that ends the process is skipped by the next one
            try:
                child = subprocess.run(
                    command, capture_output=True, text=True, timeout=options.timeout, check=False, env=environment, cwd=ROOT,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
                )  # fmt: skip
                text = child.stdout.strip().splitlines()[-1] if child.stdout.strip() else child.stderr[-300:]
                is_unfinished = child.returncode < 0
            except subprocess.TimeoutExpired:
                text = f"more than {options.timeout} s"
            print(f"{', '.join(file.name for file in group)}: {text}", file=sys.stderr)
    print(table(read(options.output)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

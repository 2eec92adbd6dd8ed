"""Run the Arm backend's own operator, module and model tests in both implementations.

``python -m bench.incumbent_tests [--folders ops,modules] [--files test_add] [--targets t,u] [--per-function 16] -o FILE.jsonl``

Pytest collects the tests of the executorch wheel unchanged. Instead of a pipeline's run, ethorch compiles its module and inputs
for each target and runs them in the simulator. Every byte of every delegate is compared with the TOSA reference model. The Arm
backend compiles each case that ethorch does not fully delegate, for its own target of the pipeline. Operators left on the CPU are
counted in both ``.pte`` files. Networks have random weights instead of downloaded ones. Cases that FILE.jsonl already contains are
skipped.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.incumbent_case import measure_arm, measure_own, record_settings
from bench.incumbent_results import needs_comparison, page, read, read_states, summarize

Record = dict[str, Any]
TARGETS = ("ethos-u55-32", "ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
FOLDERS = ("ops", "modules", "models", "quantizer", "misc")
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
    """Return the sorted test files of ``folders`` whose names start with one of ``names``."""
    root = tests_folder()
    files = [file for folder in folders for file in sorted((root / folder).rglob("test_*.py"))]
    return [file for file in files if file.name.startswith(tuple(names))]


class Measured(Exception):
    """An exception that ends a test without a pipeline after its case has been measured."""


class Plugin:
    """A pytest plugin that selects and measures quantized cases, at most ``limit`` for each function.

    If a file has tests for Ethos-U, only those are cases. Otherwise, its quantized TOSA tests are cases for every target.
    ``seconds`` limits the CPU time of each implementation for a case and target; 0 disables the limit.
    """

    def __init__(self, path: Path, targets: Sequence[str], limit: int, compare: bool, seconds: float):
        self.path, self.targets, self.limit, self.compare, self.seconds = path, targets, limit, compare, seconds
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
            item.own_markers = [marker for marker in item.own_markers if marker.name not in ("skip", "skipif")]
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
        is_for_npu = "EthosU" in kind or "EthosU" in type(pipeline.tester.compile_spec).__name__
        if is_for_npu != self.is_for_npu:
            return
        self.measured.add(self.case)
        families: tuple[str, ...] = ("u55", "u65") if is_for_npu else ("u55", "u65", "u85")
        if is_for_npu and "u85" in kind.lower() + self.case.partition("[")[0].lower() and "U55" not in kind:
            families = ("u85",)
        arm: dict[str, Record] = {}
        for target in [target for target in self.targets if target.split("-")[1].startswith(families)]:
            record = {"case": self.case, "target": target, **measure_own(pipeline, target, self.seconds)}
            if self.expected_failure:
                record["expected_failure"] = self.expected_failure
            family = "u85" if "u85" in target else "u55"
            if self.compare and needs_comparison(record):
                arm[family] = arm.get(family) or measure_arm(pipeline, family, self.seconds)
                record["arm"] = arm[family]
            _append(self.path, record)


def _names_npu(item: Any) -> bool:
    return any(name in item.nodeid.partition("[")[0].lower() for name in ("_u55", "_u65", "_u85"))


def _is_quantized(item: Any) -> bool:
    name = item.nodeid.rpartition("::")[2].partition("[")[0]
    return "vgf" not in item.name.lower() and not any(word in name for word in ("_FP", "_fp", "bf16", "fp16"))


def _case(item: Any) -> str:
    return f"{item.path.relative_to(tests_folder()).with_suffix('')}::{item.name}"


def _append(path: Path, record: Record) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


class _BarePipeline:
    """A replacement for a pipeline in tests that use ``ArmTester`` directly."""

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


def run_here(files: Sequence[Path], plugin: Plugin) -> int:
    """Run the cases of ``files`` in this process, record them with ``plugin``, and return pytest's exit status."""
    import pytest
    import torch
    from executorch.backends.arm.quantizer import TOSAQuantizer
    from executorch.backends.arm.test.tester import test_pipeline as pipelines
    from executorch.backends.arm.test.tester.arm_tester import ArmTester

    from bench.random_weights import use_random_weights

    torch.set_num_threads(1)
    record_settings(TOSAQuantizer)
    use_random_weights()
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("bench.incumbent_tests", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folders", default=",".join(FOLDERS))
    parser.add_argument("--files", default="test_", help="prefixes of file names, separated by commas")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--per-function", type=int, default=16, help="cases per test function; default: %(default)s")
    parser.add_argument("--no-arm", action="store_true", help="do not compile with the Arm backend")
    parser.add_argument("--seconds", type=float, default=480, help="CPU seconds per case and implementation; 0: no limit")
    parser.add_argument("--timeout", type=int, default=1800, help="wall-clock seconds of a process")
    parser.add_argument("--memory", type=float, default=12, help="GiB of address space of a process")
    parser.add_argument("-o", "--output", type=Path, default=Path("incumbent_tests.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of finished files and exit")
    parser.add_argument("--files-per-process", type=int, default=8)
    parser.add_argument("--here", type=Path, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.table:
        print(page(summarize([record for path in options.table for record in read(path)])))
        return 0
    targets = options.targets.split(",")
    if options.here:
        plugin = Plugin(options.output, targets, options.per_function, not options.no_arm, options.seconds)
        return run_here(options.here, plugin)
    limit = int(options.memory * 2**30)
    files = list_files(options.folders.split(","), options.files.split(","))
    for first in range(0, len(files), options.files_per_process):
        group = files[first : first + options.files_per_process]
        command = [sys.executable, "-m", "bench.incumbent_tests", "--here", *map(str, group), "--targets", options.targets]
        command += ["--per-function", str(options.per_function), "--seconds", str(options.seconds)]
        command += ["-o", str(options.output)] + ["--no-arm"] * options.no_arm
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
    print(page(summarize(read(options.output))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run ExecuTorch's backend-neutral operator suite in both implementations: delegated, passed, SNR.

``python -m bench.suite [--targets t,u] [--filter EXPRESSION] [--executorch DIR] [--json]``

``executorch.backends.test.suite`` is in the wheel: one file per operator, each case a small module. A case is quantized with its
example inputs, lowered, run on random inputs, and compared with the fake-quantized module (atol 0.1, rtol 0.04). Only the list of
flows is replaced. The flow of the Arm backend is that of the suite, except that its program runs in ``ethorch.runtime`` instead of
Arm's simulator, which no package registry contains.

Suite SNR is the suite's own figure: the program against the fake-quantized module. Float SNR is against the float module, on the
calibration inputs. A case is not *wholly* delegated if it has a CPU operator other than quantize and dequantize. The last lists
contain the cases in which ethorch needs more NPU cycles or a larger ``.pte``. They compare wholly delegated cases whose float SNRs
differ by less than 3 dB.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from bench.compile import DEFAULT_TARGETS, geometric_mean, provenance
from bench.implementation import BOUNDARY, IMPLEMENTATIONS, load_api, memory_for

Record = dict[str, Any]
_NOTHING: Record = {
    "delegated": False, "delegated_operators": {}, "cpu_operators": {}, "snr_db": [], "float_snr_db": None, "cycles": None,
    "pte_bytes": None,
}  # fmt: skip
ROOT = Path(__file__).resolve().parent.parent
_EQUAL_DB = 3.0
CPU_SECONDS = 600  # for one case; the suite itself allows 120 of wall clock


def flow(impl: str, target: str) -> Any:
    """Return the suite's ``TestFlow`` of one implementation. Its programs run in ``ethorch.runtime``.

    Raises:
        RuntimeError: The process has already imported the other implementation.
    """
    from executorch.backends.test.harness import Tester
    from executorch.backends.test.harness.stages import Quantize, Serialize, StageType, ToEdgeTransformAndLower
    from executorch.backends.test.suite.flow import TestFlow

    api = load_api(impl)
    system_config, memory_mode = memory_for(target)

    def compile_spec() -> Any:
        return api.EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)

    class InSimulator(Serialize):
        """A program that runs in ExecuTorch's runtime with simulated delegates."""

        def run_artifact(self, inputs: Any) -> list[Any]:
            from ethorch import runtime

            return runtime.load(self.artifact)(*copy.deepcopy(inputs))

    class Lowered(ToEdgeTransformAndLower):
        def __init__(self) -> None:
            super().__init__(api.EthosUPartitioner, [api.EthosUPartitioner(compile_spec())])

    def quantize() -> Any:
        return Quantize(api.EthosUQuantizer(compile_spec()), api.get_symmetric_quantization_config(is_per_channel=True))

    def tester(model: Any, inputs: Any, **named: Any) -> Any:
        stages = Tester.default_stage_classes()
        stages |= {StageType.TO_EDGE_TRANSFORM_AND_LOWER: Lowered, StageType.SERIALIZE: InSimulator}
        return Tester(model, inputs, stage_classes=stages, **named)

    if impl == "ethorch":
        return TestFlow("ethorch", "ethorch", tester_factory=tester, quantize=True, quantize_stage_factory=quantize)

    from executorch.backends.arm.test.tester.arm_tester import ArmTester
    from executorch.backends.test.suite.flows.arm import ARM_ETHOS_U55_FLOW

    class ArmInSimulator(ArmTester):
        def serialize(self, serialize_stage: Any = None, **named: Any) -> Any:
            return super().serialize(InSimulator(), **named)

    def arm_tester(*arguments: Any, **named: Any) -> Any:
        return ArmInSimulator(*arguments, compile_spec=compile_spec(), use_portable_ops=True, **named)

    # The shipped flow of one target with another compile spec: it differs between targets in nothing else.
    return replace(ARM_ETHOS_U55_FLOW, name="arm", tester_factory=arm_tester, quantize_stage_factory=quantize)


class Recorder:
    """A pytest plugin that sets the suite's flow and the seeds, and writes a line of JSON after each case."""

    def __init__(self, flow: Any, target: str, path: Path, finished: set[str]):
        self.flow, self.path, self.done = flow, path, finished
        self.float_snr: list[float] = []
        self.ptes: list[bytes] = []
        self.target = target
        self._watch_tester()

    def _watch_tester(self) -> None:
        """Record the float SNR, which requires the testers inside the suite's runner."""
        make = self.flow.tester_factory

        def make_tester(model: Any, inputs: Any, **named: Any) -> Any:
            import torch

            from ethorch.support.metrics import sqnr_db

            with torch.no_grad():
                wanted = _floats(copy.deepcopy(model).eval()(*copy.deepcopy(inputs)))
            tester = make(model, inputs, **named)
            run = tester.run_method_and_compare_outputs

            def running(*arguments: Any, **options: Any) -> Any:
                stage = tester.stages[tester.cur]
                self.ptes.append(stage.artifact)
                found = _floats(stage.run_artifact(inputs))
                if wanted.shape == found.shape and wanted.numel():
                    self.float_snr.append(sqnr_db(wanted, found))
                return run(*arguments, **options)

            tester.run_method_and_compare_outputs = running
            return tester

        self.flow = replace(self.flow, tester_factory=make_tester)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if _case(item) not in self.done]

    def pytest_runtest_setup(self, item: Any) -> None:
        import hashlib

        import torch

        self.float_snr, self.ptes = [], []
        torch.manual_seed(int.from_bytes(hashlib.sha256(_case(item).encode()).digest()[:4], "little"))
        self._write({"case": _case(item), "state": "started"})
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # nothing handles its signal: the process ends

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.when != "call":
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        runner = item.funcargs.get("test_runner")
        for index, result in enumerate(runner._results if runner else []):
            counts = result.undelegated_op_counts or {}  # None where lowering failed
            left = {name: n for name, n in counts.items() if not any(b in name for b in BOUNDARY)}
            snr = self.float_snr[index] if index < len(self.float_snr) else None
            program = self.ptes[index] if index < len(self.ptes) else None
            self._write(
                {
                    "case": _case(item),
                    "result": result.result.name,
                    "delegated": result.is_delegated(),
                    "delegated_operators": dict(result.delegated_op_counts or {}),
                    "cpu_operators": left,
                    "snr_db": [statistics.sqnr for statistics in result.tensor_error_statistics],
                    "float_snr_db": snr,
                    "cycles": None if program is None else count_cycles(program, self.target),
                    "pte_bytes": None if program is None else len(program),
                    "error": f"{type(result.error).__name__}: {result.error}"[:1000] if result.error else "",
                }
            )
        if runner is None or not runner._results:
            skipped = call.excinfo is not None and call.excinfo.typename == "Skipped"
            outcome = "SKIPPED" if skipped else "NO_RESULT"
            self._write({**_NOTHING, "case": _case(item), "result": outcome, "error": str(call.excinfo)[:1000]})

    def _write(self, record: Record) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def count_cycles(program: bytes, target: str) -> int:
    """Return the NPU cycles of all delegates of a ``.pte``, estimated with ``ethorch.npu.cycles``."""
    from ethorch.formats import pte
    from ethorch.npu.cycles import estimate
    from ethorch.npu.ir import decode
    from ethorch.runtime.checks import payloads
    from ethorch.targets.compile_spec import EthosUCompileSpec
    from ethorch.targets.memory_rates import read_memory_rates

    system_config, memory_mode = memory_for(target)
    rates = read_memory_rates(EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode))
    methods = pte.read(program).methods
    return sum(estimate(decode(payload.commands), rates).cycles for method in methods.values() for payload in payloads(method))


def _case(item: Any) -> str:
    """Return the case without the flow's name, e.g. ``test_add.py::test_add_dtype[float32]``."""
    flow = item.callspec.params["test_runner"].name
    return f"{item.path.name}::{item.name}".replace(f"[{flow}-", "[").replace(f"-{flow}]", "]").replace(f"[{flow}]", "")


def _floats(outputs: Any) -> Any:
    """Return all outputs as one float64 vector."""
    import torch
    from torch.utils import _pytree

    return torch.cat([x.double().flatten() for x in _pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor)])


def run_here(impl: str, target: str, path: Path, expression: str = "", executorch: Path | None = None) -> int:
    """Run the suite's operators in this process, and append records to ``path``. Cases in that file are skipped.

    Returns:
        The exit status of pytest.
    """
    import pytest
    import torch
    from executorch.backends.test.suite import flow as flows
    from executorch.backends.test.suite.reporting import begin_test_session

    torch.set_num_threads(1)
    done = {record["case"] for record in read(path)}
    recorder = Recorder(flow(impl, target), target, path, done)
    flows.all_flows = lambda: {impl: recorder.flow}
    begin_test_session(None, seed=0)
    folder = suite_folder(executorch)
    arguments = [str(folder / "operators"), "-c", os.devnull, "--rootdir", str(folder), "--import-mode=importlib", "-q"]
    arguments += ["-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "--tb=no", "-k", expression]
    return pytest.main(arguments, plugins=[recorder])


def suite_folder(executorch: Path | None = None) -> Path:
    """Return the folder of the suite, in a checkout of ExecuTorch or in the installed package.

    Raises:
        FileNotFoundError: Neither contains the suite.
    """
    spec = find_spec("executorch")
    places = [executorch] if executorch else [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        if (place / "backends/test/suite/operators").is_dir():
            return place / "backends/test/suite"
    raise FileNotFoundError(
        f"no backends/test/suite/operators in {', '.join(map(str, places))}; the wheel of executorch 1.4 has it, and "
        "--executorch takes the path of a checkout."
    )


def read(path: Path) -> list[Record]:
    """Return the records of a file. A case that did not end is ``CRASH``."""
    records: list[Record] = []
    started = None
    for line in path.read_text().splitlines() if path.exists() else []:
        record = json.loads(line)
        if "state" in record:
            if started:
                records.append(_crash(started))
            started = record["case"]
        else:
            records.append(record)
            started = None
    return records + ([_crash(started)] if started else [])


def _crash(case: str) -> Record:
    return {**_NOTHING, "case": case, "result": "CRASH", "error": f"the process ended, or {CPU_SECONDS} CPU seconds passed"}


def run(impl: str, target: str, expression: str = "", executorch: Path | None = None, save: Path | None = None) -> list[Record]:
    """Run the whole suite in a child process, and start a new child after each crash."""
    with tempfile.TemporaryDirectory() as directory:
        path = save or Path(directory) / "records"
        arguments = [sys.executable, "-m", "bench.suite", "--impl", impl, "--targets", target, "--filter", expression]
        arguments += ["--records", str(path)] + (["--executorch", str(executorch)] if executorch else [])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        while True:
            before = len(read(path))
            child = subprocess.run(arguments, env=environment, stdout=sys.stderr, check=False)
            records = read(path)
            if child.returncode in (0, 1):  # pytest: all passed, some failed
                return records
            if child.returncode > 0 or len(records) == before:
                raise RuntimeError(f"{' '.join(arguments)} ended with {child.returncode}; see stderr.")


COUNTED: dict[str, Callable[[Record], bool]] = {
    "cases": lambda r: True,
    "delegated": lambda r: r["delegated"],
    "wholly delegated": lambda r: r["delegated"] and not r["cpu_operators"],
    "delegated and passed": lambda r: r["delegated"] and r["result"] == "SUCCESS",
    "wholly, and passed": lambda r: r["delegated"] and not r["cpu_operators"] and r["result"] == "SUCCESS",
    "passed on the CPU": lambda r: r["result"] == "SUCCESS_UNDELEGATED",
    "failed": lambda r: r["result"] not in ("SUCCESS", "SUCCESS_UNDELEGATED", "SKIPPED"),
    "skipped": lambda r: r["result"] == "SKIPPED",
}


def figures(records: Sequence[Record]) -> dict[str, float]:
    """Return the counts, and the median SNRs in dB of the delegated cases that passed."""
    found: dict[str, float] = {name: sum(map(bool, map(test, records))) for name, test in COUNTED.items()}
    passed = [r for r in records if COUNTED["delegated and passed"](r)]
    snr = [min(x for x in r["snr_db"] if x is not None) for r in passed if any(x is not None for x in r["snr_db"])]
    floats = [r["float_snr_db"] for r in passed if r["float_snr_db"] is not None]
    found["suite SNR"] = median(snr) if snr else math.nan
    found["float SNR"] = median(floats) if floats else math.nan
    return found


def table(results: dict[str, dict[str, list[Record]]]) -> str:
    """Format a Markdown table by target and implementation, followed by the cases that differ."""
    names = [*COUNTED, "suite SNR", "float SNR"]
    lines = [f"| target | implementation | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for target, by_impl in results.items():
        for impl, records in by_impl.items():
            found = figures(records)
            cells = [f"{found[n]:.1f}" if "SNR" in n else str(int(found[n])) for n in names]
            lines.append(f"| {target} | {impl} | {' | '.join(cells)} |")
    for target, by_impl in results.items():
        for impl, records in by_impl.items():
            bad = [r for r in records if COUNTED["failed"](r) or r["result"] == "SUCCESS_UNDELEGATED"]
            lines += ["", f"{impl} on {target}, not delegated or failed:"]
            groups = Counter((r["case"].split("::")[0], r["result"]) for r in bad)
            lines += [f"- {file.removesuffix('.py')}: {n} {result}" for (file, result), n in sorted(groups.items())]
    for target, by_impl in results.items():
        if set(by_impl) == set(IMPLEMENTATIONS):
            own, arm = (by_impl[impl] for impl in IMPLEMENTATIONS)
            for figure, limit in (("cycles", 1.0), ("pte_bytes", 1.1)):
                lines += ["", *list_above(own, arm, figure, limit, target)]
    return "\n".join(lines)


def list_above(own: Sequence[Record], arm: Sequence[Record], figure: str, limit: float, target: str) -> list[str]:
    """Return lines of the cases whose ``figure`` is above ``limit`` times the Arm backend's, and the geometric mean."""
    ratios = {}
    others = _by_run(arm)
    for name, record in _by_run(own).items():
        other = others.get(name)
        if other is None or not all(COUNTED["wholly, and passed"](r) and r[figure] for r in (record, other)):
            continue
        signals = record["float_snr_db"], other["float_snr_db"]
        if None in signals or abs(signals[0] - signals[1]) < _EQUAL_DB or signals[0] == signals[1]:
            ratios[name] = record[figure] / other[figure]
    above = sorted((name for name in ratios if ratios[name] > limit), key=ratios.__getitem__, reverse=True)
    mean = geometric_mean(list(ratios.values()))
    lines = [f"{figure} on {target}: geometric mean {mean:.2f} of {len(ratios)} runs, {len(above)} above {limit}"]
    return lines + [f"- {name}: {ratios[name]:.2f}" for name in above]


def _by_run(records: Sequence[Record]) -> dict[str, Record]:
    counts: Counter[str] = Counter()
    named = {}
    for record in records:
        named[f"{record['case']}, run {counts[record['case']]}"] = record
        counts[record["case"]] += 1
    return named


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.suite", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default=",".join(DEFAULT_TARGETS))
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, help="run only this implementation")
    parser.add_argument("--filter", default="", help="pytest's -k expression")
    parser.add_argument("--executorch", type=Path, help="checkout of ExecuTorch whose suite runs instead of the installed one")
    parser.add_argument("--save", type=Path, help="folder of the records; cases with a record are skipped")
    parser.add_argument("--records", type=Path, help="run in this process and append the records to this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    targets = options.targets.split(",")
    if options.records:
        return run_here(options.impl, targets[0], options.records, options.filter, options.executorch)
    results: dict[str, dict[str, list[Record]]] = {}
    for target in targets:
        for impl in [options.impl] if options.impl else IMPLEMENTATIONS:
            save = options.save / f"{target}-{impl}.jsonl" if options.save else None
            if options.save:
                options.save.mkdir(parents=True, exist_ok=True)
            results.setdefault(target, {})[impl] = run(impl, target, options.filter, options.executorch, save)
    if options.json:
        counted = {target: {impl: figures(r) for impl, r in by_impl.items()} for target, by_impl in results.items()}
        print(json.dumps({"provenance": provenance(), "figures": counted, "records": results}, indent=2))
    else:
        print(table(results))
        print()
        print(provenance())
    return 0


if __name__ == "__main__":
    sys.exit(main())

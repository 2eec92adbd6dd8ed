"""Run ExecuTorch's own tests of the Arm backend's public names with ethorch's names.

``python -m bench.incumbent_api [--folders public_api_bc,quantizer,misc] [--files test_set]`` copies the installed tests to a
temporary folder and redirects imports to ``ethorch.testing``, ``ethorch.arm`` and its modules. It runs each file with pytest in a
separate process, and prints a table. The exit status is 1 if ``REASONS`` does not explain a failure.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("public_api_bc", "quantizer", "misc")
ARM = "executorch.backends.arm"
_TOOL = "VGF is another product, whose converter is not installed"
_PIPELINE = "mixes ExecuTorch's own QuantizationPipeline, which accepts only its own quantizer, with ethorch's quantizer"
_INTERNALS = "passes ethorch's compile spec or enumerations to private classes of the Arm backend, which compare their own"
_METADATA = "asserts private metadata of a pass"
#: Beginning of ``folder/file::test`` -> why it cannot pass with ethorch's names.
REASONS: dict[str, str] = {
    "public_api_bc/test_vgf": _TOOL,
    "misc/test_vgf": _TOOL,
    "quantizer/test_vgf": _TOOL,
    "quantizer/test_conv_relu_fusing": _PIPELINE,
    "quantizer/test_selective": f"imports torchvision's compiled operators, and {_PIPELINE}",
    "quantizer/test_uint8_io": "passes ExecuTorch's own TosaCompileSpec, from its test helpers, to ethorch's quantizer",
    "quantizer/test_generic_annotater.py::test_grid": "calls a private annotator of ExecuTorch with ethorch's config",
    "quantizer/test_generic_annotater": "needs source_fn_stack, which only a strict export records, unlike ethorch's tester",
    "quantizer/test_partial_quantization": _METADATA,
    "quantizer/test_preserve_kwargs": "expects full_like in the quantized graph; ethorch's quantizer folds constants",
    "misc/test_shared_qspecs": _PIPELINE,
    "misc/test_call_operator_submodule": _INTERNALS,
    "misc/test_debug_hook": _INTERNALS,
    "misc/test_extract_io_params_tosa.py::test_only_vgf": "compares private attributes of partitioners, and is about VGF",
    "misc/test_debug_feats.py::test_fail_dump_ops_u55": "expects that TOSA operators of an Ethos-U delegate are not printed",
    "misc/test_mixed_type_lowering": "counts the float operators of ExecuTorch's own decomposition of quantize and dequantize",
    "misc/test_multiple_delegates": "expects the maximum of all elements on the CPU; ethorch delegates it",
    "misc/test_partition_decomposed_quantized_ops.py::test_softplus_tosa_INT": "expects softplus on the CPU; ethorch delegates it",
    "misc/test_mixed_fp_bf16_partition": _INTERNALS,
    "misc/test_pass_pipeline_config": f"{_INTERNALS}: its pass manager",
    "misc/test_pass_required_order": f"{_INTERNALS}: its pass manager",
    "misc/test_custom_shader_payloads": "is about shaders of VGF, another product, and imports from ExecuTorch's source tree",
    "misc/test_public_api_manifest": "compares the manifest of the Arm backend's own source tree, which it finds by its own place",
    "misc/test_quant_custom_meta": "open: with INT and FP, ethorch leaves quantize operators at the inputs on the CPU",
    "misc/test_save_exported_model": "asserts private metadata of ExecuTorch's quantizer (ArmAnnotationInfo)",
    "misc/test_silero_vad_example": "imports an example from ExecuTorch's source tree, which is not installed",
    "misc/test_artifact_dumping.py::test_custom_path": "calls a private method of the compile spec (_get_intermediate_path)",
    "misc/test_evaluate_model": "runs a script of the Arm backend, which imports torchvision's compiled operators",
    "misc/test_external_vela_blocks.py::test_ethosu_preprocess": "patches private methods of the Arm backend's EthosUBackend",
    "misc/test_compile_spec": "calls private methods of the compile spec (_to_list, _get_pass_pipeline_config), or is about VGF",
}


def tests_folder() -> Path:
    """Return the folder of the installed tests."""
    spec = importlib.util.find_spec(f"{ARM}.test")
    locations = None if spec is None else spec.submodule_search_locations
    if not locations:
        raise SystemExit("the installed executorch has no tests of its Arm backend; executorch 1.5 ships them.")
    return Path(next(iter(locations)))


def substitute(source: str) -> tuple[str, list[str]]:
    """Return the source with ethorch's imports, and the names that it still imports from the Arm backend."""
    import ethorch.testing
    from ethorch import arm
    from ethorch.arm.test.tester import test_pipeline

    lines, names = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(ARM):
            continue
        imports: dict[str, list[str]] = {}
        path = str(node.module).replace(ARM, arm.__name__, 1)
        modules = [arm, test_pipeline, ethorch.testing, *([importlib.import_module(path)] if _exists(path) else [])]
        for alias in node.names:
            module = next((m for m in modules if alias.name in getattr(m, "__all__", ())), None)
            place = node.module if module is None else module.__name__
            imports.setdefault(str(place), []).append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
            names += [f"{node.module}.{alias.name}"] * (module is None)
        indent = " " * node.col_offset
        statements = [f"from {place} import {', '.join(found)}" for place, found in imports.items()]
        for alias in node.names:
            if _exists(counterpart := f"{path}.{alias.name}"):
                name = alias.asname or alias.name
                statements.append(f"import bench.incumbent_api; {name} = bench.incumbent_api.overlay({name}, {counterpart!r})")
        text = "; ".join(statements)
        assert node.end_lineno is not None
        lines[node.lineno - 1 : node.end_lineno] = [indent + text] + [""] * (node.end_lineno - node.lineno)
    return "\n".join(lines) + "\n", names


def overlay(module: ModuleType, counterpart: str) -> SimpleNamespace:
    """Return the names of a module of the Arm backend, with those of its counterpart in ethorch replaced."""
    own = importlib.import_module(counterpart)
    return SimpleNamespace(**vars(module) | {name: getattr(own, name) for name in getattr(own, "__all__", ())})


def _exists(path: str) -> bool:
    """Return True if there is a module of that path; its parents need not exist."""
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:
        return False


@dataclass
class Outcome:
    """The results of one test file.

    Attributes:
        names: Names that the file still imports from the Arm backend.
        counts: Number of tests by ``passed``, ``failed`` and ``skipped``.
        failures: First line of the error by test.
    """

    names: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)


def run(file: Path, folder: Path, timeout: int) -> Outcome:
    """Run a test file in its substituted form.

    Args:
        file: The installed test file.
        folder: A temporary folder.
        timeout: Seconds of wall clock.
    """
    text, names = substitute(file.read_text(encoding="utf-8"))
    found, copy, report = Outcome(names), folder / file.name, folder / f"{file.stem}.xml"
    copy.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", str(copy), "-q", "-c", os.devnull, "--rootdir", str(folder), f"--junitxml={report}"]
    command += ["-p", f"{ARM}.test.conftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "--import-mode=importlib"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # flatc of executorch
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        found.failures[file.name] = f"more than {timeout} s"
        return found
    if not report.is_file():
        found.failures[file.name] = (done.stderr or done.stdout).strip().splitlines()[-1]
        return found
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        state = "failed" if problem is not None else "skipped" if case.find("skipped") is not None else "passed"
        found.counts[state] += 1
        if problem is not None:
            message = (problem.get("message") or problem.text or "").strip()
            found.failures[str(case.get("name"))] = message.splitlines()[0][:200] if message else problem.tag
    return found


def rows(outcomes: dict[str, Outcome]) -> Iterator[str]:
    """Yield the lines of a Markdown table, and a line for each failure."""
    yield "| file | passed | failed | skipped | names of the Arm backend that remain |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for name, outcome in outcomes.items():
        counts = (outcome.counts[state] for state in ("passed", "failed", "skipped"))
        rest = ", ".join(dict.fromkeys(full.removeprefix(f"{ARM}.") for full in outcome.names))
        yield f"| {name} | {' | '.join(map(str, counts))} | {rest} |"
    for name, outcome in outcomes.items():
        for test, error in outcome.failures.items():
            yield f"- {name}::{test}: {reason_of(name, test) or 'UNEXPLAINED'} ({error})"


def reason_of(file: str, test: str) -> str:
    """Return the reason why a test cannot pass with ethorch's names, or "" if ``REASONS`` contains none."""
    return next((reason for prefix, reason in REASONS.items() if f"{file}::{test}".startswith(prefix)), "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("bench.incumbent_api", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folders", default=",".join(FOLDERS))
    parser.add_argument("--files", default="test_", help="prefixes of file names, separated by commas")
    parser.add_argument("--timeout", type=int, default=900, help="wall-clock seconds per test file")
    options = parser.parse_args(arguments)
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.folders.split(","):
            for file in sorted((tests_folder() / name).glob("test_*.py")):
                if file.name.startswith(tuple(options.files.split(","))):
                    label = f"{name}/{file.name}"
                    outcomes[label] = run(file, Path(folder), options.timeout)
                    print(f"{label}: {dict(outcomes[label].counts)}", file=sys.stderr, flush=True)
    print("\n".join(rows(outcomes)))
    return int(any(not reason_of(name, test) for name, outcome in outcomes.items() for test in outcome.failures))


if __name__ == "__main__":
    sys.exit(main())

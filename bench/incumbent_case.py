"""Measure one case of the Arm backend's tests: compile, run and compare with ethorch, and compile with the Arm backend."""

from __future__ import annotations

import contextlib
import copy
import functools
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bench.implementation import BOUNDARY, memory_for

Record = dict[str, Any]
RECORDED = "recorded_settings"
_FLOAT_MODULE = "float module"


class TooLong(BaseException):
    """The end of a measurement by timeout. It is not an ``Exception``, because compilers catch exceptions and continue."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TooLong` in the block after ``seconds`` of CPU time; 0 disables the limit.

    Native code is interrupted only when it returns to Python.
    """

    def end(*_: Any) -> None:
        raise TooLong(f"more than {seconds:g} s of CPU time")

    if not seconds:
        yield
        return
    previous = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def cpu_operators(pte: bytes) -> tuple[int, dict[str, int]]:
    """Return the number of delegates of a ``.pte`` and the count of each CPU operator except quantize and dequantize."""
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
    """Return the calls (name, arguments) of ``set_*`` that configured the pipeline's quantizer, with the global config first."""
    stage = pipeline._stages[pipeline.find_pos("quantize")].args[0]
    quantizer = getattr(stage, "quantizer", None) or pipeline.quantizer
    recorded = list(getattr(quantizer, RECORDED, ()))
    if not any(name == "set_global" for name, _ in recorded):
        inner = getattr(quantizer, "quantizer", quantizer)
        config = getattr(inner, "global_config", None) or getattr(stage, "quantization_config", None)
        recorded.insert(0, ("set_global", (config,)))
    return recorded


def record_settings(kind: type) -> None:
    """Make quantizers of ``kind`` record the calls of their ``set_*`` methods."""

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

    from ethorch import QuantizationConfig
    from ethorch.arm.quantizer import (
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
    """Return the converted model and a description of the calibration samples, which are those of the test.

    If the samples do not reach a branch or a loop's body, multiples of the samples are also used.
    """
    import torch

    from ethorch.support.errors import QuantizationError

    stage = pipeline._stages[pipeline.find_pos("quantize")].args[0]
    samples = list(copy.deepcopy(getattr(stage, "calibration_samples", None) or [inputs]))
    is_qat, fold_quantize = bool(getattr(stage, "is_qat", False)), getattr(stage, "fold_quantize", True)

    def export() -> Any:
        try:
            return torch.export.export(copy.deepcopy(model), inputs)
        except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode:  # the tests export strictly
            return torch.export.export(copy.deepcopy(model), inputs, strict=True)

    def quantize(samples: list[Any]) -> Any:
        exported = export().module(check_guards=False)
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


def measure_own(pipeline: Any, target: str, limit: float = 0) -> Record:
    """Compile and run one case; record its status, delegates, CPU operators, reasons, differing bytes and CPU seconds.

    After ``limit`` seconds of CPU time, the status is ``too long`` with the interrupted step. The status is ``not run`` if the
    float module fails or returns no tensors, for example with other library versions.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    from bench.implementation import flat
    from bench.zoo.run import Watched, differing
    from ethorch import EthosUCompileSpec, runtime
    from ethorch.backend.build import build_pte
    from ethorch.formats.payload import DelegatePayload
    from ethorch.support.errors import EthorchError
    from ethorch.support.metrics import sqnr_db

    start, step = time.process_time(), "quantize"
    record: Record = {"status": "ok"}
    try:
        with time_limit(limit):
            system_config, memory_mode = memory_for(target)
            spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
            model = copy.deepcopy(pipeline.tester.original_module).eval()
            inputs = tuple(copy.deepcopy(pipeline.test_data))
            quantizer = _own_quantizer(pipeline, spec)
            step = _FLOAT_MODULE
            with torch.no_grad():
                reference = copy.deepcopy(model)(*copy.deepcopy(inputs))
            if any(isinstance(leaf, str) for leaf in tree_leaves(reference)):
                raise TypeError(f"the module returns {reference}")
            step = "quantize"
            quantized, record["calibration"] = _quantize(model, inputs, quantizer, pipeline)
            step = "compile"
            build = build_pte(quantized, inputs, spec)
            delegates, cpu = cpu_operators(build.pte)
            record |= {"delegates": delegates, "cpu": cpu}
            record["reasons"] = sorted(f"{r.origin.target} ({r.reason.id})" for r in build.partition.refusals)
            step = "run"
            machines: dict[DelegatePayload, Watched] = {}

            def watch(payload: DelegatePayload) -> Watched:
                return machines.setdefault(payload, Watched(payload))

            outputs = runtime.load(build.pte, machine=watch)(*copy.deepcopy(inputs))
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
    except TooLong as error:
        record |= {"status": f"too long: {step}", "error": str(error)}
    except EthorchError as error:
        record |= {"status": f"refused: {step}", "error": str(error)[:800]}
    except Exception as error:
        status = "not run" if step == _FLOAT_MODULE else f"failed: {step}"
        record |= {"status": status, "error": f"{type(error).__name__}: {str(error)[:800]}"}
    return record | {"seconds": round(time.process_time() - start, 2)}


def _run_reference(tosa: bytes, arrays: Sequence[Any]) -> list[Any]:
    """Run a graph in the TOSA reference model in this process, which ends if the graph aborts the model."""
    import tosa_reference_model as model

    results, status = model.run(tosa, list(arrays))
    if int(status) != int(model.GraphStatus.TOSA_VALID):
        raise RuntimeError(f"the reference model returns {status}")
    return list(results)


def measure_arm(pipeline: Any, family: str, limit: float = 0) -> Record:
    """Compile one case with the Arm backend and record ``delegates`` and ``cpu`` of the ``.pte``, or ``error``.

    Args:
        pipeline: The test's pipeline.
        family: ``u55`` or ``u85``, for a pipeline without an NPU.
        limit: Seconds of CPU time.
    """
    measure = _run_stages if "EthosU" in type(pipeline).__name__ else functools.partial(_compile_tosa_case, family=family)
    start = time.process_time()
    try:
        with time_limit(limit):
            return _arm_result(pipeline, measure(pipeline), start)
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def _run_stages(pipeline: Any) -> bytes:
    names = ("quantize", "export", "to_edge", "partition", "to_edge_transform_and_lower", "to_executorch")
    for stage in list(pipeline._stages):
        if stage.id.split(".")[0] in names:
            stage()
        if stage.id.startswith("to_executorch"):
            break
    return bytes(pipeline.tester.get_artifact().buffer)


def _arm_result(pipeline: Any, pte: bytes, start: float) -> Record:
    """Return delegates, CPU operators and, if the program runs, its SQNR against the float module on the test's inputs."""
    import torch

    from bench.implementation import flat
    from ethorch import runtime
    from ethorch.support.metrics import sqnr_db

    delegates, cpu = cpu_operators(pte)
    record: Record = {"delegates": delegates, "cpu": cpu, "seconds": round(time.process_time() - start, 2)}
    try:
        inputs = tuple(copy.deepcopy(pipeline.test_data))
        with torch.no_grad():
            reference = copy.deepcopy(pipeline.tester.original_module).eval()(*copy.deepcopy(inputs))
        results = [torch.as_tensor(x).double() for x in runtime.load(pte)(*inputs)]
        record["sqnr_db"] = float(sqnr_db(flat(reference).double(), flat(results).double()))
    except (Exception, TooLong) as error:  # its program may have operators that the runtime lacks
        record["run_error"] = f"{type(error).__name__}: {str(error)[:200]}"
    return record


def _compile_tosa_case(pipeline: Any, family: str) -> bytes:
    """Compile the case of a TOSA test with the Arm backend for an NPU of ``family``, and return the ``.pte``."""
    from executorch.backends.arm.quantizer import EthosUQuantizer
    from executorch.backends.arm.test import common
    from executorch.backends.arm.test.tester.arm_tester import ArmTester
    from executorch.backends.arm.test.tester.quantize import ArmQuantize
    from executorch.backends.test.harness.stages import StageType

    spec = common.get_u85_compile_spec() if family == "u85" else common.get_u55_compile_spec()
    quantizer = EthosUQuantizer(spec)
    for name, arguments in _settings(pipeline):
        getattr(quantizer, name)(*arguments)
    tester = ArmTester(pipeline.tester.original_module, example_inputs=pipeline.test_data, compile_spec=spec)
    tester.quantize(ArmQuantize(quantizer, set_global=False)).export().to_edge_transform_and_lower().to_executorch()
    return bytes(tester.get_artifact(StageType.TO_EXECUTORCH).buffer)

"""Assertions about NPU operators, accuracy, cycles and memory."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ethorch import runtime
from ethorch.formats.payload import DelegatePayload
from ethorch.lower.partition_report import refusal_texts
from ethorch.program.compile import Model
from ethorch.program.compile import compile as compile_model
from ethorch.program.measure.ladder import Recorder
from ethorch.program.program import Program, record_of
from ethorch.support.errors import EthorchError, HostError
from ethorch.support.wording import count_noun
from ethorch.targets.settings import bytes_of
from ethorch.testing.recording import record
from ethorch.tosa.reference_model import run as run_tosa
from ethorch.vela.verification import delegate_arrays


def assert_runs_on_npu(
    module: Model | Program,
    inputs: Any = None,
    target: str | None = None,
    *,
    min_sqnr_db: float | None = None,
    max_cpu_ops: int = 0,
    max_delegates: int | None = None,
    max_cycles: int | None = None,
    max_milliseconds: float | None = None,
    max_ram: int | str | None = None,
    max_flash: int | str | None = None,
    calibration: Any = None,
    **settings: Any,
) -> Program:
    """Compile the model and check that it meets the limits. A single message lists all violations.

    ::

        def test_deployable():
            assert_runs_on_npu(model, images[0], "ethos-u55-128", calibration=images, min_sqnr_db=25, max_ram="256K")

    Args:
        module, inputs, target, calibration, settings: See :func:`ethorch.compile`. ``module`` may also be a Program.
        min_sqnr_db: Minimum SQNR relative to the float model. See :attr:`Program.accuracy`.
        max_cpu_ops: Maximum number of CPU operators, not counting quantize and dequantize operators at inputs and outputs.
        max_cycles: Maximum NPU cycles, estimated by Vela.
        max_milliseconds: Maximum estimated time of one inference on NPU and CPU.
        max_ram, max_flash: Maximum memory of the application, in bytes or as text such as ``"256K"``.

    Returns:
        The program.

    Raises:
        AssertionError: A limit is violated, or no operator runs on the NPU. If ``max_cpu_ops`` is exceeded, the message lists the
            source line, reason and remedy of each CPU operator.
        EthorchError: Compilation fails, or a figure is unknown, e.g. because the program was loaded from a file.
    """
    program = module if isinstance(module, Program) else compile_model(module, inputs, target, calibration=calibration, **settings)
    record(program)
    lines = _check_operators(program, max_cpu_ops)
    for name, figure, limit, unit in (
        ("delegates", len(record_of(program).payloads), max_delegates, ""),
        ("NPU cycles", _npu_cycles(program) if max_cycles is not None else 0, max_cycles, ""),
        ("inference time", program.estimate.milliseconds if max_milliseconds is not None else 0, max_milliseconds, " ms"),
        (
            "application RAM",
            program.memory.ram_bytes if max_ram is not None else 0,
            bytes_of(max_ram, "max_ram"),
            " bytes",
        ),
        (
            "application flash",
            program.memory.flash_bytes if max_flash is not None else 0,
            bytes_of(max_flash, "max_flash"),
            " bytes",
        ),
    ):
        if limit is None:
            continue
        if figure is None:
            raise EthorchError(f"the {name} of {program!r} is unknown. Pass the model instead of a program loaded from a file.")
        if figure > limit:
            lines.append(f"{name}: expected at most {limit:,}{unit}, got {figure:,}{unit}.")
    if min_sqnr_db is not None:
        lines += _check_accuracy(program, min_sqnr_db)
    if lines:
        raise AssertionError(
            "\n".join([f"{_describe(program)} on {program.target or 'the NPU'} does not meet the limits.", *lines])
        )
    return program


def _check_accuracy(program: Program, minimum: float) -> list[str]:
    try:
        accuracy = program.accuracy
    except HostError as error:  # a CPU operator without a kernel
        return [f"SQNR against the float model: expected at least {minimum:g} dB, but the program cannot run. {error}"]
    if accuracy is None:
        raise EthorchError(
            f"the SQNR of {program!r} is unknown, because the float model is unknown. Pass the model instead of the program."
        )
    if accuracy.sqnr_db >= minimum:
        return []
    return [
        f"SQNR against the float model: expected at least {minimum:g} dB, got {accuracy.sqnr_db:.1f} dB for "
        f"{count_noun(accuracy.samples, 'sample')}. Use `ethorch.tuning.sensitivity` to find the most sensitive modules."
    ]


def _describe(program: Program) -> str:
    module = getattr(record_of(program).model, "module", None)
    return f"program {record_of(program).method}" if module is None else type(module).__name__


def _npu_cycles(program: Program) -> int | None:
    cycles: int | None = program.to_json()["total_cycles"]
    return cycles


def _check_operators(program: Program, allowed: int) -> list[str]:
    on_cpu = program.explain(cpu_only=True)
    build = record_of(program).build
    partition = None if build is None else build.partition
    if partition is None:
        places = [f"{row.operator} {row.module} {row.source}".rstrip() for row in on_cpu.operators]
        places = [place for place in places if "quantize" not in place]
        count = len(places)
    else:
        places, count = refusal_texts(refusal.to_json() for refusal in partition.refusals), len(partition.refusals)
    lines = []
    if count > allowed:
        lines.append(f"operators on the CPU: expected at most {allowed}, got {count}:")
        lines += [f"  {place}" for place in places]
    if not record_of(program).payloads:
        lines.append("operators on the NPU: expected at least 1, got 0.")
    return lines


def assert_bit_exact(program: Program, inputs: Any = None) -> None:
    """Check that the simulated outputs of each delegate equal the outputs of the TOSA reference model.

    Args:
        inputs: Inputs of one inference. Default: the example inputs.

    Raises:
        AssertionError: Elements differ. The message contains the delegate, the operator and the first differing element.
        EthorchError: The program was loaded from a file, which does not contain TOSA graphs.
    """
    program_record = record_of(program)
    if program_record.build is None or program_record.model is None:
        raise EthorchError(
            f"expected a program returned by ethorch.compile, got {program!r}, which was loaded from a file without TOSA graphs."
        )
    record(program)
    arguments = program_record.model.example_inputs if inputs is None else inputs if isinstance(inputs, tuple) else (inputs,)
    recorders: list[Recorder] = []

    def create_recorder(payload: DelegatePayload) -> Recorder:
        recorders.append(Recorder(payload))
        return recorders[-1]

    with torch.no_grad():
        runtime.load(program.pte, program_record.method, machine=create_recorder)(
            *copy.deepcopy(pytree.tree_leaves(program_record.as_taken(arguments)))
        )
    lowered = {delegate.payload: delegate for delegate in program_record.build.delegates}
    lines = []
    for number, recorder in enumerate(recorders):
        if not recorder.outputs:
            continue  # the delegate is in a branch that was not executed
        delegate = lowered[recorder.payload]
        expected = run_tosa(delegate.tosa, delegate_arrays(delegate, recorder.inputs))
        for index, (reference, raw) in enumerate(zip(expected, recorder.outputs, strict=True)):
            actual = raw.view(reference.dtype).reshape(reference.shape)
            if len(mismatches := np.argwhere(actual != reference)):
                first = tuple(int(i) for i in mismatches[0])
                lines.append(
                    f"delegate {number}, output {index} of {delegate.graph.outputs[index].origin}: {len(mismatches)} of "
                    f"{actual.size} elements differ, the first at {list(first)}: reference {reference[first]}, "
                    f"simulator {actual[first]}."
                )
    if lines:
        raise AssertionError("\n".join([f"{_describe(program)} on {program.target} is not bit-exact.", *lines]))

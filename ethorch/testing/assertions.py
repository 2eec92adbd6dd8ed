"""One line in a test: does the model still run on the NPU, near enough to the float model, within its limits?"""

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
    """Compile the model and hold it against limits; one message names all that do not hold.

    ::

        def test_deployable():
            assert_runs_on_npu(model, images[0], "ethos-u55-128", calibration=images, min_sqnr_db=25, max_ram="256K")

    Args:
        module, inputs, target, calibration, settings: as of ``ethorch.compile``; or a Program, alone.
        min_sqnr_db: least SQNR against the float model, over at most 8 calibration samples.
        max_cpu_ops: operators on the CPU; quantize and dequantize at the program's ends do not count.
        max_delegates: parts on the NPU, each a call of the driver.
        max_cycles: of the NPU, by Vela's estimate.
        max_milliseconds: of one inference, NPU and CPU, by the estimate.
        max_ram, max_flash: of the whole application: bytes, or texts such as ``"256K"``.

    Returns:
        the program.

    Raises:
        AssertionError: something does not hold. The message lists what is on the CPU, with place, reason and way out.
        EthorchError: as of ``ethorch.compile``; or a figure is not known, as of a file.
    """
    program = module if isinstance(module, Program) else compile_model(module, inputs, target, calibration=calibration, **settings)
    record(program)
    lines = _operators(program, max_cpu_ops)
    for name, found, limit, unit in (
        ("delegates", len(record_of(program).payloads), max_delegates, ""),
        ("cycles of the NPU", _npu_cycles(program) if max_cycles is not None else 0, max_cycles, ""),
        ("time of one inference", program.estimate.milliseconds if max_milliseconds is not None else 0, max_milliseconds, " ms"),
        (
            "RAM of the whole application",
            program.memory.ram_bytes if max_ram is not None else 0,
            bytes_of(max_ram, "max_ram"),
            " bytes",
        ),
        ("flash", program.memory.flash_bytes if max_flash is not None else 0, bytes_of(max_flash, "max_flash"), " bytes"),
    ):
        if limit is None:
            continue
        if found is None:
            raise EthorchError(f"the {name} of {program!r} is not known; give the model, not a file.")
        if found > limit:
            lines.append(f"{name}: {found:,}{unit}, at most {limit:,}{unit} allowed.")
    if min_sqnr_db is not None:
        lines += _too_far_off(program, min_sqnr_db)
    if lines:
        raise AssertionError("\n".join([f"{_name(program)} on {program.target or 'the NPU'} does not hold its limits.", *lines]))
    return program


def _too_far_off(program: Program, wanted: float) -> list[str]:
    """That the outputs are further from the float model's than wanted, or that the program does not run here."""
    try:
        accuracy = program.accuracy
    except HostError as error:  # an operator on the CPU that has no kernel
        return [f"SQNR against the float model: at least {wanted:g} dB wanted, and the program does not run: {error}"]
    if accuracy is None:
        raise EthorchError(f"the SQNR of {program!r} is not known: there is no float model to compare with.")
    if accuracy.sqnr_db >= wanted:
        return []
    return [
        f"SQNR against the float model: {accuracy.sqnr_db:.1f} dB over {count_noun(accuracy.samples, 'sample')}, "
        f"at least {wanted:g} dB wanted. `ethorch.tuning.sensitivity` names the modules that cost most."
    ]


def _name(program: Program) -> str:
    module = getattr(record_of(program).model, "module", None)
    return f"program {record_of(program).method}" if module is None else type(module).__name__


def _npu_cycles(program: Program) -> int | None:
    cycles: int | None = program.to_json()["total_cycles"]
    return cycles


def _operators(program: Program, allowed: int) -> list[str]:
    """What is on the CPU, where it is too much; and that nothing is on the NPU."""
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
        lines.append(f"operators on the CPU: {count}, at most {allowed} allowed:")
        lines += [f"  {place}" for place in places]
    if not record_of(program).payloads:
        lines.append("nothing runs on the NPU.")
    return lines


def assert_bit_exact(program: Program, inputs: Any = None) -> None:
    """Each delegate computes in the simulator, bit for bit, what the TOSA reference model says of the graph it was made from.

    Args:
        program: of ``ethorch.compile``.
        inputs: of one inference, as the program is called; the model's example inputs by default.

    Raises:
        AssertionError: an element differs; the message names the delegate, its operators' places, and the element.
        EthorchError: the program is a file's, which does not hold the TOSA graphs.
    """
    known = record_of(program)
    if known.build is None or known.model is None:
        raise EthorchError(f"{program!r} is a file's: its TOSA graphs are not known. Give what ethorch.compile returned.")
    record(program)
    given = known.model.example_inputs if inputs is None else inputs if isinstance(inputs, tuple) else (inputs,)
    recorders: list[Recorder] = []

    def recording(payload: DelegatePayload) -> Recorder:
        recorders.append(Recorder(payload))
        return recorders[-1]

    with torch.no_grad():
        runtime.load(program.pte, known.method, machine=recording)(*copy.deepcopy(pytree.tree_leaves(known.as_taken(given))))
    lowered = {delegate.payload: delegate for delegate in known.build.delegates}
    lines = []
    for number, recorder in enumerate(recorders):
        if not recorder.outputs:
            continue  # a branch that was not taken
        delegate = lowered[recorder.payload]
        wanted = run_tosa(delegate.tosa, delegate_arrays(delegate, recorder.inputs))
        for index, (reference, raw) in enumerate(zip(wanted, recorder.outputs, strict=True)):
            found = raw.view(reference.dtype).reshape(reference.shape)
            if len(where := np.argwhere(found != reference)):
                first = tuple(int(i) for i in where[0])
                lines.append(
                    f"delegate {number}, output {index}, of {delegate.graph.outputs[index].origin}: {len(where)} of {found.size} "
                    f"elements differ, the first at {list(first)}: reference {reference[first]}, simulator {found[first]}."
                )
    if lines:
        raise AssertionError("\n".join([f"{_name(program)} on {program.target} is not bit-exact.", *lines]))

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ethorch import runtime
from ethorch.backend.emit.kernels import CAST_KERNEL, QUANTIZE_KERNEL
from ethorch.formats.payload import BACKEND_ID, DelegatePayload, IoTensor
from ethorch.formats.pte_types import Call, Method
from ethorch.models.load import Inputs
from ethorch.program.facts import Unchecked, Verification
from ethorch.program.record import Record
from ethorch.runtime.many import keeps_state
from ethorch.runtime.session import together
from ethorch.support.errors import EthorchError, MachineFault, VerificationError
from ethorch.support.progress import stage
from ethorch.vela.lowered import Lowered
from ethorch.vela.repair import random_inputs
from ethorch.vela.verification import check_outputs

Array = npt.NDArray[Any]

logger = logging.getLogger(__name__)

_MOST_SAMPLES = 4  # maximum number of samples to run until the outputs of a delegate are not constant
_CALLS_WITH_STATE = 3  # maximum number of calls of each method in a program with state


class _Check:
    def __init__(self, name: str, payload: DelegatePayload, delegate: Lowered | None):
        self.name, self.payload, self.delegate = name, payload, delegate
        self.inputs: list[Array] | None = None
        self.is_settled = delegate is None  # or compared with outputs that are not constant
        self.reason = "the TOSA graph of the delegate is unknown" if delegate is None else "no sample executes the delegate"

    def run(self, machine: Any) -> None:
        """Run a simulator whose memory contains the inputs, and compare the outputs with the TOSA reference.

        Inputs for which TOSA does not define a result, such as out-of-range indices, are not compared.

        Raises:
            VerificationError: The outputs differ from the reference, or the simulator raises a fault.
        """
        inputs = [_bytes(machine, tensor) for tensor in self.payload.inputs]
        if self.delegate is None:
            machine.run()
            return
        fault = None
        try:
            machine.run()
        except MachineFault as error:
            fault = error
        outputs = [_bytes(machine, tensor) for tensor in self.payload.outputs]
        try:
            check_outputs(self.delegate, self.name, inputs, outputs if fault is None else fault)
        except (ArithmeticError, IndexError) as error:
            if self.inputs is None:
                self.reason = f"the TOSA reference does not define a result for the inputs: {error}"
            return
        self.reason = ""
        self.inputs = inputs
        self.is_settled |= all(output.size < 2 or bool((output != output[0]).any()) for output in outputs)

    def run_on(self, inputs: Sequence[Array]) -> None:
        try:
            machine = runtime.npu_machine(self.payload)
        except MachineFault as fault:
            self.reason = f"the simulator does not support the delegate: {fault}"
            return
        for tensor, data in zip(self.payload.inputs, inputs, strict=True):
            machine.region(tensor.region)[tensor.offset : tensor.offset + tensor.nbytes] = data
        self.run(machine)

    def run_on_random_inputs(self) -> None:
        """Verify the delegate on the random inputs of ``vela.repair`` if no sample verified it."""
        if self.delegate is not None and self.inputs is None and (inputs := random_inputs(self.delegate)) is not None:
            self.run_on(inputs[0])


class _Checking:
    def __init__(self, check: _Check):
        self._check = check
        self._machine = runtime.npu_machine(check.payload)

    def region(self, index: int) -> Array:
        return self._machine.region(index)

    def run(self) -> None:
        self._check.run(self._machine)


def _bytes(machine: Any, tensor: IoTensor) -> Array:
    actual: Array = machine.region(tensor.region)[tensor.offset : tensor.offset + tensor.nbytes].copy()
    return actual


def verify_program(record: Record) -> Record:
    """Compare each delegate of all methods with the TOSA reference, and store the result in the records.

    Raises:
        VerificationError: The outputs of a delegate differ from the reference, or the simulator raises a fault.
    """
    parts = {name: record[name] for name in record.methods}
    checks: dict[DelegatePayload, _Check] = {}
    places: list[tuple[str, int, _Check]] = []
    for name, part in parts.items():
        delegates = {} if part.build is None else {delegate.payload: delegate for delegate in part.build.delegates}
        for number, delegate in enumerate(part.description.delegates):
            if delegate.id == BACKEND_ID:
                payload = delegate.payload
                if payload not in checks:
                    checks[payload] = _Check(f"delegate {number} of method {name!r}", payload, delegates.get(payload))
                places.append((name, number, checks[payload]))
    if checks:
        with stage("verify"), torch.no_grad():
            _run_samples(parts, checks)
            for check in checks.values():
                check.run_on_random_inputs()
    unchecked = tuple(Unchecked(name, number, check.reason) for name, number, check in places if check.reason)
    repairs = tuple(text for check in checks.values() if check.delegate is not None for text in check.delegate.repairs)
    for part in (*parts.values(), record):  # a record that selects a method by shape is not in parts
        part.verification = Verification(len(places), len(places) - len(unchecked), unchecked, repairs)
    return record


def _run_samples(parts: Mapping[str, Record], checks: Mapping[DelegatePayload, _Check]) -> None:
    descriptions = {name: part.description for name, part in parts.items()}
    left = dict(parts)
    while left:
        name, part = next(iter(left.items()))
        group = together(descriptions, name)
        left = {name: value for name, value in left.items() if name not in group}
        has_state = any(map(keeps_state, group.values()))
        if not has_state and _run_directly(part, checks):
            continue
        try:
            loaded = runtime.load(part.pte, name, machine=lambda payload: _Checking(checks[payload]))
            calls = Counter[str]()
            for method, inputs in _calls([parts[name] for name in group]):
                if calls[method] < (_CALLS_WITH_STATE if has_state else _MOST_SAMPLES):
                    loaded[method](*pytree.tree_leaves(parts[method].as_taken(inputs)))
                    calls[method] += 1
                if not has_state and all(checks[payload].is_settled for payload in part.payloads):
                    break
        except VerificationError:
            raise
        except EthorchError as error:  # the host cannot run a CPU operator
            logger.debug("delegates are verified separately: %s", error)


def _calls(parts: Sequence[Record]) -> list[tuple[str, Inputs]]:
    if sessions := parts[0].sessions:
        names = {part.method for part in parts}
        return [(name, inputs) for session in sessions for name, inputs in session if name in names]
    models = {part.method: part.model for part in parts if part.model is not None}
    return [(name, inputs) for name, model in models.items() for inputs in model.calibration or [model.example_inputs]]


def _run_directly(part: Record, checks: Mapping[DelegatePayload, _Check]) -> bool:
    # Run the only delegate of a method without ExecuTorch, because importing ExecuTorch takes a second.
    # Return False if the method has several delegates, or if CPU operators other than quantize and casts precede the delegate.
    if len(part.description.delegates) != 1 or len(part.payloads) != 1:
        return False
    check = checks[part.payloads[0]]
    for _, inputs in _calls([part])[:_MOST_SAMPLES]:
        arrays = _delegate_inputs(part.description, pytree.tree_leaves(part.as_taken(inputs)))
        if arrays is None:
            return False
        check.run_on(arrays)
        if check.is_settled:
            break
    return True


def _delegate_inputs(method: Method, inputs: Sequence[Any]) -> list[Array] | None:
    """Return the first delegate's inputs as bytes, or None if an operator other than quantize or cast precedes the delegate."""
    if len(method.chains) != 1 or len(inputs) != len(method.inputs) or not all(isinstance(x, Tensor) for x in inputs):
        return None
    arrays: dict[int, Array] = {}
    for index, tensor in zip(method.inputs, inputs, strict=True):
        if method.values[index].dim_order != tuple(range(tensor.dim())):
            return None
        arrays[index] = tensor.detach().contiguous().numpy()
    for step in method.chains[0].instructions:
        if not isinstance(step, Call) or any(arg not in arrays for arg in (step.args[:1] if step.delegate is None else ())):
            return None
        if step.delegate is not None:
            arguments = [arrays.get(arg) for arg in step.args]
            input_count = len(method.delegates[step.delegate].payload.inputs)
            return (
                None
                if any(x is None for x in arguments[:input_count])
                else [_flat(x) for x in arguments[:input_count] if x is not None]
            )
        target = method.values[step.args[-1]]
        if step.operator == QUANTIZE_KERNEL:
            scale, zero, low, high = (method.values[arg].number for arg in step.args[1:5])
            codes = np.rint(np.nan_to_num(arrays[step.args[0]]).astype(np.float64) / scale) + zero
            arrays[step.args[-1]] = np.clip(codes, low, high).astype(target.dtype)
        elif step.operator == CAST_KERNEL:
            arrays[step.args[-1]] = arrays[step.args[0]].astype(target.dtype)
        else:
            return None
    return None


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

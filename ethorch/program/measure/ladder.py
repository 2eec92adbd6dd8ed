"""Compare the float model, the quantized model, the TOSA reference model and the simulator, in this order.

A wrong result is caused by the first of these that differs too much from the previous one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ethorch import runtime
from ethorch.backend.emit.build import Build
from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.models.load import Inputs
from ethorch.program.comparison import DelegateComparison, Ladder, OutputComparison
from ethorch.support.metrics import sqnr_db
from ethorch.tosa.reference_model import run as run_tosa
from ethorch.vela.lowered import Lowered
from ethorch.vela.verification import delegate_arrays


def compare(model: nn.Module, quantized: nn.Module, build: Build, inputs: Inputs) -> Ladder:
    """Compare the float model, the quantized model and the compiled program on the inputs of one inference."""
    results, recorders = run_recorded(build.pte, "forward", inputs)
    with torch.no_grad():
        floats, fakes = _flat(model(*inputs)), _flat(quantized(*inputs))
    outputs = tuple(compare_output(*tensors) for tensors in zip(floats, fakes, results, strict=True))
    return Ladder(outputs, tuple(compare_delegates(build.delegates, [recorders])))


def run_recorded(pte: bytes, method: str, inputs: Inputs) -> tuple[list[Any], list[Recorder]]:
    """Run a program from its initial state. Return its outputs, and recorders of the delegates' inputs and outputs."""
    recorders: list[Recorder] = []

    def add_recorder(payload: DelegatePayload) -> Recorder:
        recorders.append(Recorder(payload))
        return recorders[-1]

    results = runtime.load(pte, method, machine=add_recorder)(*inputs)
    return [x.clone() if isinstance(x, Tensor) else x for x in results], recorders


def _flat(outputs: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(outputs)


def compare_output(floats: Any, fakes: Any, npu: Any) -> OutputComparison:
    """Compare one output of the float model, the quantized model and the program.

    Args:
        floats: Output of the float model: a tensor, or a list with one tensor for each sample.
        fakes: Output of the quantized model in the same form, or None if unknown.
        npu: Output of the program in the same form.
    """
    npu_tensors = _flat(npu)
    shape, npu_db = tuple(npu_tensors[0].shape), sqnr_db(floats, npu)
    if fakes is None:
        return OutputComparison(shape, math.nan, npu_db, math.nan, math.nan)
    pairs = [pair for pair in zip(_flat(fakes), npu_tensors, strict=True) if pair[0].numel()]
    largest = max((float((a.double() - b.double()).abs().max()) for a, b in pairs), default=0.0)
    return OutputComparison(shape, sqnr_db(floats, fakes), npu_db, sqnr_db(fakes, npu), largest)


class Recorder:
    """A simulator for ``ethorch.runtime`` that records the inputs and outputs of its last run as bytes."""

    def __init__(self, payload: DelegatePayload):
        self.payload = payload
        self.machine = runtime.npu_machine(payload)
        self.inputs: list[npt.NDArray[Any]] = []
        self.outputs: list[npt.NDArray[Any]] = []

    def region(self, index: int) -> npt.NDArray[Any]:
        return self.machine.region(index)

    def run(self) -> None:
        self.inputs = [self._bytes(tensor) for tensor in self.payload.inputs]
        self.machine.run()
        self.outputs = [self._bytes(tensor) for tensor in self.payload.outputs]

    def _bytes(self, tensor: IoTensor) -> npt.NDArray[Any]:
        return self.region(tensor.region)[tensor.offset : tensor.offset + tensor.nbytes].copy()


def collect_inputs(delegates: Sequence[Lowered], recorders: Sequence[Recorder]) -> dict[str, npt.NDArray[Any]]:
    """Return the bytes of each delegate input in one run, by node name."""
    by_payload = {delegate.payload: delegate for delegate in delegates}
    return {
        value.name: array
        for recorder in recorders
        if recorder.outputs
        for value, array in zip(by_payload[recorder.payload].inputs, recorder.inputs, strict=True)
    }


def compare_delegates(delegates: Sequence[Lowered], runs: Sequence[Sequence[Recorder]]) -> Iterator[DelegateComparison]:
    """Compare the simulator with the TOSA reference model for each delegate, over the runs of all samples."""
    by_payload = {delegate.payload: delegate for delegate in delegates}
    for recorders in zip(*runs, strict=True):
        # delegates of other methods are not in `by_payload`
        comparisons = [_compare_delegate(by_payload[r.payload], r) for r in recorders if r.payload in by_payload]
        first = next((x.first_difference for x in comparisons if x.different), "")
        yield DelegateComparison(sum(x.elements for x in comparisons), sum(x.different for x in comparisons), first)


def _compare_delegate(delegate: Lowered, recorder: Recorder) -> DelegateComparison:
    if not recorder.outputs:  # the delegate is in a branch that was not executed
        return DelegateComparison(0, 0, "")
    arrays = delegate_arrays(delegate, recorder.inputs)
    elements, different, first = 0, 0, ""
    for number, (reference, output) in enumerate(zip(run_tosa(delegate.tosa, arrays), recorder.outputs, strict=True)):
        simulated = output.view(reference.dtype).reshape(reference.shape)
        elements += reference.size
        positions = np.argwhere(simulated != reference)
        if len(positions) and not different:
            index = tuple(int(i) for i in positions[0])
            first = f"output {number} at {list(index)}: reference {reference[index]}, simulator {simulated[index]}"
        different += len(positions)
    return DelegateComparison(elements, different, first)

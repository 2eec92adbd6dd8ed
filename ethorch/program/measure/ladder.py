"""The ladder: inputs through the float model, the quantized model, the TOSA reference model and the simulator.

The first rung that differs from the one before by more than it may says where a wrong result comes from: quantization
costs dB, lowering may move a value by one step, and from TOSA on every bit is the same. ``Comparison`` has each operator's own
rungs besides (``layers``).
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
    """Run one input through every rung."""
    results, recorders = run_recorded(build.pte, "forward", inputs)
    with torch.no_grad():
        floats, fakes = _flat(model(*inputs)), _flat(quantized(*inputs))
    outputs = tuple(compare_output(*tensors) for tensors in zip(floats, fakes, results, strict=True))
    return Ladder(outputs, tuple(compare_delegates(build.delegates, [recorders])))


def run_recorded(pte: bytes, method: str, inputs: Inputs) -> tuple[list[Any], list[Recorder]]:
    """The program's outputs, and what its delegates got and gave; started anew, so that buffers are as the file has them."""
    recorders: list[Recorder] = []

    def recording(payload: DelegatePayload) -> Recorder:
        recorders.append(Recorder(payload))
        return recorders[-1]

    results = runtime.load(pte, method, machine=recording)(*inputs)
    return [x.clone() if isinstance(x, Tensor) else x for x in results], recorders


def _flat(outputs: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(outputs)


def compare_output(floats: Any, fakes: Any, npu: Any) -> OutputComparison:
    """One output: a tensor of each rung, or a list of them, one for each sample; None if the quantized model's is missing."""
    found = _flat(npu)
    shape, npu_db = tuple(found[0].shape), sqnr_db(floats, npu)
    if fakes is None:
        return OutputComparison(shape, math.nan, npu_db, math.nan, math.nan)
    pairs = [pair for pair in zip(_flat(fakes), found, strict=True) if pair[0].numel()]
    apart = max((float((a.double() - b.double()).abs().max()) for a, b in pairs), default=0.0)
    return OutputComparison(shape, sqnr_db(floats, fakes), npu_db, sqnr_db(fakes, npu), apart)


class Recorder:
    """A machine for ``ethorch.runtime`` that keeps what went into its last run and what came out."""

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


def recorded_inputs(delegates: Sequence[Lowered], recorders: Sequence[Recorder]) -> dict[str, npt.NDArray[Any]]:
    """What a run gave its delegates, by the name of the graph's input: the node that it comes from."""
    by_payload = {delegate.payload: delegate for delegate in delegates}
    return {
        value.name: found
        for recorder in recorders
        if recorder.outputs
        for value, found in zip(by_payload[recorder.payload].inputs, recorder.inputs, strict=True)
    }


def compare_delegates(delegates: Sequence[Lowered], runs: Sequence[Sequence[Recorder]]) -> Iterator[DelegateComparison]:
    """Each delegate in the simulator against the reference model, over the runs of all samples."""
    by_payload = {delegate.payload: delegate for delegate in delegates}
    for recorders in zip(*runs, strict=True):
        found = [
            _compare_delegate(by_payload[r.payload], r) for r in recorders if r.payload in by_payload
        ]  # others: of other methods
        first = next((x.first_difference for x in found if x.different), "")
        yield DelegateComparison(sum(x.elements for x in found), sum(x.different for x in found), first)


def _compare_delegate(delegate: Lowered, recorder: Recorder) -> DelegateComparison:
    if not recorder.outputs:  # a branch that the run did not take
        return DelegateComparison(0, 0, "")
    arrays = delegate_arrays(delegate, recorder.inputs)
    elements, different, first = 0, 0, ""
    for number, (wanted, found) in enumerate(zip(run_tosa(delegate.tosa, arrays), recorder.outputs, strict=True)):
        got = found.view(wanted.dtype).reshape(wanted.shape)
        elements += wanted.size
        where = np.argwhere(got != wanted)
        if len(where) and not different:
            index = tuple(int(i) for i in where[0])
            first = f"output {number} at {list(index)}: reference {wanted[index]}, simulator {got[index]}"
        different += len(where)
    return DelegateComparison(elements, different, first)

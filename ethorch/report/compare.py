"""The ladder: one input through the float model, the quantized model, the TOSA reference model and the simulator.

The first rung that differs from the one before by more than it may says where a wrong result comes from: quantization
costs dB, lowering may move a value by one step, and from TOSA on every bit is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ethorch import host
from ethorch.backend import Lowered
from ethorch.flow import Build
from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.metrics import sqnr_db
from ethorch.model_files import Inputs
from ethorch.tosa.reference_model import run as run_tosa

_DTYPES = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "BOOL": np.bool_}


@dataclass(frozen=True)
class OutputComparison:
    """One output of the program.

    Attributes:
        quantized_db: SQNR of the quantized model against the float one.
        npu_db: SQNR of the program on the NPU against the float model.
        agreement_db: SQNR of the program on the NPU against the quantized model.
        largest_difference: between the program and the quantized model.
    """

    shape: tuple[int, ...]
    quantized_db: float
    npu_db: float
    agreement_db: float
    largest_difference: float


@dataclass(frozen=True)
class DelegateComparison:
    """One delegate in the simulator against the TOSA reference model: how many output elements differ, and of how many."""

    elements: int
    different: int
    first_difference: str


@dataclass(frozen=True)
class Ladder:
    """All rungs for one input."""

    outputs: tuple[OutputComparison, ...]
    delegates: tuple[DelegateComparison, ...]

    @property
    def bit_exact(self) -> bool:
        """Does the simulator compute what the TOSA reference model computes?"""
        return all(delegate.different == 0 for delegate in self.delegates)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bit_exact": self.bit_exact}

    def to_text(self) -> str:
        lines = []
        for number, x in enumerate(self.outputs):
            lines.append(
                f"output {number} {list(x.shape)}: quantized vs float {x.quantized_db:.1f} dB, NPU vs float "
                f"{x.npu_db:.1f} dB, NPU vs quantized {x.agreement_db:.1f} dB, at most {x.largest_difference:.4g} apart"
            )
        for number, d in enumerate(self.delegates):
            same = "all equal" if not d.different else f"{d.different} DIFFER, first {d.first_difference}"
            lines.append(f"delegate {number}: simulator vs TOSA reference model, {d.elements} elements: {same}")
        return "\n".join(lines)


def compare(model: nn.Module, quantized: nn.Module, build: Build, inputs: Inputs) -> Ladder:
    """Run one input through every rung."""
    recorders: list[Recorder] = []

    def recording(payload: DelegatePayload) -> Recorder:
        recorders.append(Recorder(payload))
        return recorders[-1]

    results = host.load(build.pte, machine=recording)(*inputs)
    with torch.no_grad():
        floats, fakes = _flat(model(*inputs)), _flat(quantized(*inputs))
    outputs = tuple(_compare_output(*tensors) for tensors in zip(floats, fakes, results, strict=True))
    by_payload = {delegate.payload: delegate for delegate in build.delegates}
    delegates = tuple(_compare_delegate(by_payload[recorder.payload], recorder) for recorder in recorders)
    return Ladder(outputs, delegates)


def _flat(outputs: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(outputs)


def _compare_output(floats: Tensor, fakes: Tensor, npu: Tensor) -> OutputComparison:
    return OutputComparison(
        tuple(npu.shape),
        sqnr_db(floats, fakes),
        sqnr_db(floats, npu),
        sqnr_db(fakes, npu),
        float((fakes.double() - npu.double()).abs().max()) if npu.numel() else 0.0,
    )


class Recorder:
    """A machine for ``ethorch.host`` that keeps what went into its last run and what came out."""

    def __init__(self, payload: DelegatePayload):
        self.payload = payload
        self.machine = host.npu_machine(payload)
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


def delegate_arrays(delegate: Lowered, inputs: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Bytes as a Recorder keeps them, as the arrays the TOSA graph takes."""
    return [x.view(_DTYPES[v.dtype]).reshape(v.shape) for x, v in zip(inputs, delegate.inputs, strict=True)]


def _compare_delegate(delegate: Lowered, recorder: Recorder) -> DelegateComparison:
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

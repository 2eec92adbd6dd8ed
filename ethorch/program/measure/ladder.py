"""The ladder: inputs through the float model, the quantized model, the TOSA reference model and the simulator.

The first rung that differs from the one before by more than it may says where a wrong result comes from: quantization
costs dB, lowering may move a value by one step, and from TOSA on every bit is the same. ``Comparison`` has each operator's own
rungs besides (``compare_layers``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ethorch import runtime
from ethorch.backend.emit.build import Build
from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.models.load import Inputs
from ethorch.program.measure.layers import LayerComparison, short_name
from ethorch.support.metrics import sqnr_db
from ethorch.tosa.reference_model import run as run_tosa
from ethorch.vela.lowered import Lowered
from ethorch.vela.verification import delegate_arrays


@dataclass(frozen=True)
class OutputComparison:
    """One output of the program. Figures of the quantized model are nan where it is not known.

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
            if math.isnan(x.largest_difference):
                lines.append(f"output {number} {list(x.shape)}: NPU vs float {x.npu_db:.1f} dB")
                continue
            lines.append(
                f"output {number} {list(x.shape)}: quantized vs float {x.quantized_db:.1f} dB, NPU vs float "
                f"{x.npu_db:.1f} dB, NPU vs quantized {x.agreement_db:.1f} dB, at most {x.largest_difference:.4g} apart"
            )
        for number, d in enumerate(self.delegates):
            same = "all equal" if not d.different else f"{d.different} DIFFER, first {d.first_difference}"
            lines.append(f"delegate {number}: simulator vs TOSA reference model, {d.elements} elements: {same}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Comparison(Ladder):
    """The ladder over one sample or several, and each operator's figures.

    Attributes:
        layers: in execution order.
        samples: how many.
        missing: what is not there and why; empty where all is.
    """

    layers: tuple[LayerComparison, ...] = ()
    samples: int = 1
    missing: str = ""

    @property
    def first_divergence(self) -> LayerComparison | None:
        """The first operator where the NPU parts from PyTorch by more than its rounding allows; None: there is none."""
        return next((layer for layer in self.layers if layer.diverges), None)

    @property
    def largest_loss(self) -> LayerComparison | None:
        """The operator that adds most noise for its signal; None where nothing is lost or there are no float figures."""
        known = [layer for layer in self.layers if layer.own_db is not None and not math.isnan(layer.own_db)]
        least = min(known, key=lambda layer: layer.own_db or 0.0, default=None)
        return None if least is None or least.own_db == math.inf else least

    def to_json(self) -> dict[str, Any]:
        """As plain data. A figure is None where it is not finite: of dB, where nothing differs."""
        first, loss = self.first_divergence, self.largest_loss
        found = {
            **asdict(self),
            "bit_exact": self.bit_exact,
            "first_divergence": None if first is None else first.node,
            "largest_loss": None if loss is None else loss.node,
        }
        return cast(dict[str, Any], _finite(found))

    def to_text(self) -> str:
        """What ``Ladder`` says, the operators as a table, and where to look."""
        first, loss = self.first_divergence, self.largest_loss
        lines = [super().to_text()]
        if self.layers:
            lines += ["", self.table(), ""]
            if loss is not None:
                lines.append(f"most noise enters at {loss}: {loss.own_db:.1f} dB by itself")
            apart = "nowhere do NPU and PyTorch part by more than rounding allows"
            if first is not None:
                apart = f"NPU and PyTorch part first at {first}: {first.own_steps:g} steps, allowed {first.allowed_steps}"
            lines.append(apart)
        if self.missing:
            lines.append(self.missing)
        return "\n".join(lines)

    __str__ = to_text

    def table(self) -> str:
        """The operators, a line each: LayerComparison's figures in its order, an exclamation mark where NPU and PyTorch part."""
        heads = ("", "", "", "", "fake", "NPU", "own", "NPU", "NPU/fake", "own", "clipped", "range")
        rows: list[tuple[str, ...]] = [
            heads,
            ("operator", "source", "on", "codes", "dB", "dB", "dB", "/fake dB", "steps", "steps", "%", "%"),
        ]
        for x in self.layers:
            rows.append(
                (
                    "+".join(short_name(name) for name in (*x.fused, x.operator)) + (f" {x.module}" if x.module else ""),
                    x.source,
                    "NPU" if x.on_npu else "CPU",
                    x.dtype,
                    *(_number(db) for db in (x.float_fake_db, x.float_npu_db, x.own_db, x.fake_npu_db)),
                    f"{x.steps:g}",
                    f"{x.own_steps:g}" + ("!" if x.diverges else ""),
                    *("-" if share is None else f"{100 * share:.1f}" for share in (x.saturated, x.range_used)),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if k < 4 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


def _number(db: float | None) -> str:
    return "-" if db is None else "same" if db == math.inf else f"{db:.1f}"


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


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

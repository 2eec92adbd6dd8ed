"""Compare a delegate's results with those of its TOSA graph, and find the first operator with a wrong result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.npu import Machine, staging_bytes
from ethorch.npu import Program as Stream
from ethorch.npu.machine import Trace
from ethorch.support.errors import MachineFault, VerificationError
from ethorch.tosa import interpreter
from ethorch.tosa.ir import DTYPES, NOWHERE, Graph, Op
from ethorch.vela.lowered import Lowered

Array = npt.NDArray[Any]

_FUSED = ("RESCALE", "CLAMP", "TABLE", "RESHAPE", "CAST")  # operators that the NPU fuses into the preceding one
_ADVICE = (
    "This is a bug in Vela or ethorch. Please report it. The setting verify=False (--set verify=false) returns the program "
    "unchecked."
)


def delegate_arrays(delegate: Lowered, inputs: Sequence[Array]) -> list[Array]:
    return [x.view(DTYPES[v.dtype]).reshape(v.shape) for x, v in zip(inputs, delegate.inputs, strict=True)]


def check_outputs(delegate: Lowered, name: str, inputs: Sequence[Array], outputs: Sequence[Array] | MachineFault) -> None:
    """Compare the outputs of one run with the results of the TOSA graph before its rewrites.

    Args:
        name: Name of the delegate in error messages.
        inputs, outputs: Bytes of the tensors. If a fault stopped the simulator, ``outputs`` is that fault.

    Raises:
        VerificationError: A byte differs, or a fault stopped the simulator.
        ArithmeticError, IndexError: The graph has no result for these inputs.
    """
    arrays = delegate_arrays(delegate, inputs)
    expected = interpreter.run(delegate.source, arrays)
    if isinstance(outputs, MachineFault):
        raise _stop_error(delegate, name, outputs) from outputs
    for number, (reference, output) in enumerate(zip(expected, outputs, strict=True)):
        wrong = np.flatnonzero(as_bytes(reference) != output)
        if wrong.size:
            index = np.unravel_index(int(wrong[0]) // reference.itemsize, reference.shape)
            got = output.view(reference.dtype).reshape(reference.shape)[index]
            value, operator, where = _first_difference(delegate, arrays, expected, number)
            raise VerificationError(
                f"{name} and its TOSA graph have different results. {wrong.size:,} of {output.size:,} bytes of output {number} "
                f"differ. At {[int(i) for i in index]}, expected {reference[index]}, got {got}. The first wrong operator "
                f"is {operator}, {where}. {_ADVICE}",
                operator,
                value,
            )


def _stop_error(delegate: Lowered, name: str, fault: MachineFault) -> VerificationError:
    source = None if fault.operation is None else delegate.sources.at(fault.operation.offset)
    operator = "" if source is None else _describe_operator(delegate.graph, source.name)
    works = f" The command belongs to {operator}." if operator else ""
    return VerificationError(
        f"{name} cannot run: {fault}{works} {_ADVICE}", operator, source.name if source else delegate.graph.outputs[0].name
    )


def as_bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _first_difference(delegate: Lowered, arrays: Sequence[Array], expected: Sequence[Array], output: int) -> tuple[str, str, str]:
    values: dict[str, Array] = {}

    def keep(op: Op, results: Sequence[Array]) -> None:
        values.update((value.name, array) for value, array in zip(op.results, results, strict=True))

    interpreter.run(delegate.source, arrays, keep)
    of_source = dict(values)
    values.clear()
    rewritten = interpreter.run(delegate.graph, arrays, keep)
    last = delegate.graph.outputs[output].name
    if not all(map(np.array_equal, rewritten, expected)):
        wrong = next((name for name, array in values.items() if _differs(array, of_source.get(name))), last)
        return "", _describe_operator(delegate.graph, wrong), "in the rewritten graph"
    written = _record_values(delegate, arrays)
    wrong = _first_wrong(written, values) or last
    return wrong, _describe_operator(delegate.graph, wrong, written), "in the command stream"


def _differs(array: Array, reference: Array | None) -> bool:
    return reference is not None and array.shape == reference.shape and not np.array_equal(array, reference)


def _record_values(delegate: Lowered, arrays: Sequence[Array]) -> dict[str, list[Array]]:
    written: dict[str, list[Array]] = {}

    def record(trace: Trace) -> None:
        if trace.source is not None and "OFM" in trace.outputs:
            parts = written.pop(trace.source.name, [])
            written[trace.source.name] = [*parts, trace.outputs["OFM"]]

    payload = delegate.payload
    stream = Stream(payload.commands, payload.weights)
    machine = Machine(stream, payload.scratch_bytes, staging_bytes(stream), trace=record, sources=delegate.sources)
    for tensor, array in zip(payload.inputs, arrays, strict=True):
        machine.region(tensor.region)[tensor.offset : tensor.offset + tensor.nbytes] = as_bytes(array)
    machine.run()
    return written


def _first_wrong(written: Mapping[str, Sequence[Array]], values: Mapping[str, Array]) -> str:
    moved = ""
    for name, parts in written.items():
        expected = values.get(name)
        if expected is None or sum(part.size for part in parts) != expected.size:
            continue
        flat = expected.reshape(-1)
        rows = np.concatenate([part.reshape(-1) for part in parts])
        same_rows = len({part.shape[:-1] for part in parts}) == 1
        if np.array_equal(rows, flat) or (same_rows and np.array_equal(np.concatenate(parts, -1).reshape(-1), flat)):
            continue
        if not np.array_equal(np.sort(rows), np.sort(flat)):
            return name
        moved = moved or name
    return moved


def _describe_operator(graph: Graph, name: str, written: Collection[str] = ()) -> str:
    producers = {value.name: op for region in graph.regions() for op in region.ops for value in op.results}
    op = producers.get(name)
    if op is None:
        return name
    while op.name in _FUSED and (before := producers.get(op.operands[0].name)) is not None and before.result.name not in written:
        op = before
    origin = op.result.origin
    return f"{op.name} {name}" if origin == NOWHERE else f"{op.name} of {origin}"

"""Compare what the NPU made of a delegate with the TOSA reference, and name the first operator that differs."""

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

_FUSED = ("RESCALE", "CLAMP", "TABLE", "RESHAPE", "CAST")  # what the NPU computes with the operator before it
_ADVICE = (
    "This is a bug of Vela or of ethorch: please report it. The setting verify=False (--set verify=false) returns the program as "
    "it is."
)


def delegate_arrays(delegate: Lowered, inputs: Sequence[Array]) -> list[Array]:
    """Return a delegate's input bytes as the arrays that its TOSA graph takes."""
    return [x.view(DTYPES[v.dtype]).reshape(v.shape) for x, v in zip(inputs, delegate.inputs, strict=True)]


def check_outputs(delegate: Lowered, name: str, inputs: Sequence[Array], outputs: Sequence[Array] | MachineFault) -> None:
    """Compare the outputs of one run with those of the TOSA graph before its rewrites.

    Args:
        name: The delegate, for the error.
        inputs, outputs: Bytes of the delegate's tensors; instead of outputs, the fault that the simulator stopped with.

    Raises:
        VerificationError: A byte differs, or the simulator stopped.
        ArithmeticError, IndexError: The graph has no result for these inputs.
    """
    arrays = delegate_arrays(delegate, inputs)
    expected = interpreter.run(delegate.source, arrays)
    if isinstance(outputs, MachineFault):
        raise _stopped(delegate, name, outputs) from outputs
    for number, (wanted, found) in enumerate(zip(expected, outputs, strict=True)):
        wrong = np.flatnonzero(as_bytes(wanted) != found)
        if wrong.size:
            index = np.unravel_index(int(wrong[0]) // wanted.itemsize, wanted.shape)
            got = found.view(wanted.dtype).reshape(wanted.shape)[index]
            value, operator, where = _first_difference(delegate, arrays, expected, number)
            raise VerificationError(
                f"{name} computes another result than its TOSA graph: {wrong.size:,} of {found.size:,} bytes of output {number} "
                f"differ, the first at {[int(i) for i in index]}: expected {wanted[index]}, got {got}. The first operator that "
                f"differs is {operator}, {where}. {_ADVICE}",
                operator,
                value,
            )


def _stopped(delegate: Lowered, name: str, fault: MachineFault) -> VerificationError:
    """Return the error for commands that the simulator refuses; it names the operator they work for."""
    source = None if fault.operation is None else delegate.sources.at(fault.operation.offset)
    operator = "" if source is None else _named(delegate.graph, source.name)
    works = f" The command works for {operator}." if operator else ""
    return VerificationError(
        f"{name} cannot run: {fault}{works} {_ADVICE}", operator, source.name if source else delegate.graph.outputs[0].name
    )


def as_bytes(array: Array) -> Array:
    """Return the bytes of an array, in one row."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _first_difference(delegate: Lowered, arrays: Sequence[Array], expected: Sequence[Array], output: int) -> tuple[str, str, str]:
    """Return the first value that differs, its operator, and the stage that made it wrong; no value if a rewrite did.

    Args:
        expected: Outputs of the graph before its rewrites.
        output: Number of one that differs.
    """
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
        return "", _named(delegate.graph, wrong), "changed by a rewrite"
    written = _written_values(delegate, arrays)
    wrong = _first_wrong(written, values) or last
    return wrong, _named(delegate.graph, wrong, written), "as the command stream computes it"


def _differs(array: Array, other: Array | None) -> bool:
    return other is not None and array.shape == other.shape and not np.array_equal(array, other)


def _written_values(delegate: Lowered, arrays: Sequence[Array]) -> dict[str, list[Array]]:
    """Run the commands one by one; return what those for each value of the graph write, in the order of their last command.

    Vela's database records which value a command works for.
    """
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
    """Return the name of the first value that is not written as ``values`` have it; empty if there is none.

    A value may be written in stripes of rows or of channels, and in another order if it is transposed: that one differs only if no
    other does.
    """
    moved = ""
    for name, parts in written.items():
        wanted = values.get(name)
        if wanted is None or sum(part.size for part in parts) != wanted.size:
            continue
        flat = wanted.reshape(-1)
        rows = np.concatenate([part.reshape(-1) for part in parts])
        same_rows = len({part.shape[:-1] for part in parts}) == 1
        if np.array_equal(rows, flat) or (same_rows and np.array_equal(np.concatenate(parts, -1).reshape(-1), flat)):
            continue
        if not np.array_equal(np.sort(rows), np.sort(flat)):
            return name
        moved = moved or name
    return moved


def _named(graph: Graph, name: str, written: Collection[str] = ()) -> str:
    """Return the operator that makes a value, with its place in the user's code; of operators fused into it, the first.

    Args:
        written: Names of the values that commands write.
    """
    producers = {value.name: op for region in graph.regions() for op in region.ops for value in op.results}
    op = producers.get(name)
    if op is None:
        return name
    while op.name in _FUSED and (before := producers.get(op.operands[0].name)) is not None and before.result.name not in written:
        op = before
    origin = op.result.origin
    return f"{op.name} {name}" if origin == NOWHERE else f"{op.name} of {origin}"

"""Self-test cases: inputs, and the outputs that ExecuTorch's runtime computes from them on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ethorch import runtime
from ethorch.formats.pte_types import Method, Value
from ethorch.runtime.elements import Elements
from ethorch.support import trees
from ethorch.support.errors import HostError


@dataclass(frozen=True)
class Call:
    """A call of the self-test. If ``reset`` is set, the state is reset before the call."""

    method: str
    inputs: Sequence[Any]
    reset: bool = False


@dataclass(frozen=True)
class Case:
    """A call with the bytes of its inputs and outputs."""

    call: Call
    inputs: tuple[bytes, ...] = field(repr=False)
    outputs: tuple[bytes, ...] = field(repr=False)

    @property
    def padded(self) -> bytes:
        """The bytes of all tensors, each padded to a multiple of 16 bytes."""
        return b"".join(data + bytes(-len(data) % 16) for data in (*self.inputs, *self.outputs))


def cases(pte: bytes, methods: Mapping[str, Method], calls: Sequence[Call]) -> list[Case]:
    """Run calls in order, starting from the initial state, and return their cases.

    Raises:
        HostError: A sample does not match the inputs, or the list of calls is empty.
        MachineFault: The simulator failed.
    """
    if not calls:
        raise HostError("expected at least one sample for the self-test, got none.")
    loaded: dict[str, runtime.HostProgram] = {}
    for name in methods:
        if name not in loaded:
            first = runtime.load(pte, name)
            loaded |= {method_name: first[method_name] for method_name in first.methods}
    cases_run = []
    for call in calls:
        if call.reset:
            for host_program in loaded.values():
                host_program.reset()
        method = methods[call.method]
        inputs, outputs = trees.leaves(tuple(call.inputs)), loaded[call.method].arrays(*call.inputs)
        cases_run.append(
            Case(
                call,
                tuple(tensor_bytes(x, method.values[i]) for x, i in zip(inputs, method.inputs, strict=True)),
                tuple(tensor_bytes(x, method.values[i]) for x, i in zip(outputs, method.outputs, strict=True)),
            )
        )
    return cases_run


def place_cases(cases: Sequence[Case]) -> tuple[bytes, list[int]]:
    """Concatenate the bytes of all distinct cases. Return them and the offset of each case."""
    data, offset_by_content = bytearray(), dict[bytes, int]()
    places = []
    for case in cases:
        if case.padded not in offset_by_content:
            offset_by_content[case.padded] = len(data)
            data += case.padded
        places.append(offset_by_content[case.padded])
    return bytes(data), places


def tensor_bytes(tensor: Any, value: Value) -> bytes:
    """Return the bytes of a tensor or array, in the dimension order of ``value``."""
    return Elements.of(tensor, value.dim_order).data.tobytes()

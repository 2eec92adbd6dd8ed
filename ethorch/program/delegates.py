"""The delegates of a program as a user sees them: layers, payload, TOSA graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from ethorch.figures import Layer
from ethorch.formats.payload import BACKEND_ID, DelegatePayload
from ethorch.program.record import Record


@dataclass(frozen=True)
class Delegate:
    """A part of the program on the NPU.

    Attributes:
        number: Its place among the delegates of the method.
        layers: Its operations in the order of execution.
        payload: The command stream, weights, and the layout of inputs and outputs.
        tosa: The TOSA flatbuffer that was compiled; None if the program was loaded from a ``.pte``.
        encoded_bytes: Size of the weights as Vela encoded them; of a loaded program, of all constants.
    """

    number: int
    layers: tuple[Layer, ...] = field(repr=False)
    payload: DelegatePayload = field(repr=False)
    tosa: bytes | None = field(repr=False)
    encoded_bytes: int


def delegates_of(record: Record) -> tuple[Delegate, ...]:
    """Return the NPU delegates of a record's method."""
    lowered = {} if record.build is None else {delegate.payload: delegate for delegate in record.build.delegates}
    numbers = [number for number, delegate in enumerate(record.description.delegates) if delegate.id == BACKEND_ID]
    found = []
    for number, payload in zip(numbers, record.payloads, strict=True):
        layers = tuple(layer for layer in record.layers if layer.delegate == number)
        known = lowered.get(payload)
        encoded = len(payload.weights) if known is None else known.performance.encoded_weight_bytes
        found.append(Delegate(number, layers, payload, None if known is None else known.tosa, encoded))
    return tuple(found)

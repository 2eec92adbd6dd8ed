"""The NPU delegates of a program."""

from __future__ import annotations

from dataclasses import dataclass, field

from ethorch.figures import Layer
from ethorch.formats.payload import BACKEND_ID, DelegatePayload
from ethorch.program.record import Record


@dataclass(frozen=True)
class Delegate:
    """A group of operators that runs on the NPU.

    Attributes:
        number: Position among the delegates of the method.
        layers: NPU operations in execution order.
        payload: Command stream, weights, and the layout of inputs and outputs.
        tosa: TOSA flatbuffer, or None for a loaded ``.pte``.
        encoded_bytes: Size of the encoded weights, or of all constants for a loaded program.
    """

    number: int
    layers: tuple[Layer, ...] = field(repr=False)
    payload: DelegatePayload = field(repr=False)
    tosa: bytes | None = field(repr=False)
    encoded_bytes: int


def delegates_of(record: Record) -> tuple[Delegate, ...]:
    """Return the NPU delegates of a method, in the order of the ``.pte``."""
    lowered = {} if record.build is None else {delegate.payload: delegate for delegate in record.build.delegates}
    numbers = [number for number, delegate in enumerate(record.description.delegates) if delegate.id == BACKEND_ID]
    delegates = []
    for number, payload in zip(numbers, record.payloads, strict=True):
        layers = tuple(layer for layer in record.layers if layer.delegate == number)
        delegate_lowered = lowered.get(payload)
        encoded = len(payload.weights) if delegate_lowered is None else delegate_lowered.performance.encoded_weight_bytes
        delegates.append(Delegate(number, layers, payload, None if delegate_lowered is None else delegate_lowered.tosa, encoded))
    return tuple(delegates)

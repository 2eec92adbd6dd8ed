"""Let the simulated NPU read persistent buffers in place, as generated firmware does."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.formats.payload import BACKEND_ID, DelegatePayload
from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import Method
from ethorch.npu import Machine, Program
from ethorch.npu.in_place import Inputs, Window

_REGION = 3  # region for persistent buffers, which Vela does not use
_CACHED_STREAMS = 32  # maximum number of cached modified command streams

#: Function that creates a machine for a payload, a modified command stream, and additional regions.
MachineOver = Callable[[DelegatePayload, Program, Mapping[int, npt.NDArray[np.uint8]]], Machine]


@dataclass(frozen=True)
class PersistentInputs:
    """The inputs of a delegate that are persistent buffers.

    Attributes:
        places: Offsets in the planned memory ``SHARED_MEMORY``, keyed by input index.
        size_bytes: Size of this memory.
    """

    places: Mapping[int, int]
    size_bytes: int


def find_persistent_inputs(methods: Iterable[Method]) -> dict[DelegatePayload, PersistentInputs]:
    """Return the persistent inputs of each payload called exactly once."""
    inputs_by_payload: dict[DelegatePayload, PersistentInputs] = {}
    calls = Counter[DelegatePayload]()
    for method in methods:
        if len(method.memories) <= SHARED_MEMORY:
            continue
        payloads = {n: delegate.payload for n, delegate in enumerate(method.delegates) if delegate.id == BACKEND_ID}
        for call in method.calls:
            payload = payloads.get(-1 if call.delegate is None else call.delegate)
            if payload is None:
                continue
            calls[payload] += 1
            values = [method.values[arg] for arg in call.args[: len(payload.inputs)]]
            places = {n: v.place[1] for n, v in enumerate(values) if v.place is not None and v.place[0] == SHARED_MEMORY}
            if places:
                inputs_by_payload[payload] = PersistentInputs(places, method.memories[SHARED_MEMORY])
    return {payload: inputs for payload, inputs in inputs_by_payload.items() if calls[payload] == 1}


class Buffers:
    """The persistent buffers of one delegate, in the memory of the runtime."""

    def __init__(self, payload: DelegatePayload, inputs: PersistentInputs, create: MachineOver):
        self._payload, self._inputs, self._create = payload, inputs, create
        self._base: int | None = None
        self._reader: tuple[Machine, frozenset[int]] | None = None

    def reader(self, inputs: Any) -> tuple[Machine, frozenset[int]] | None:
        """Return a machine and the indices of the inputs that it reads in place, or None if no input can be read in place.

        Args:
            inputs: Address of each input.
        """
        bases = {inputs[number] - place for number, place in self._inputs.places.items()}
        if len(bases) != 1:
            return None
        base = bases.pop()
        if base != self._base:
            self._base, self._reader = base, self._create_reader(base)
        return self._reader

    def _create_reader(self, base: int) -> tuple[Machine, frozenset[int]] | None:
        payload, places = self._payload, tuple(self._inputs.places.items())
        windows = tuple(Window(t.offset, t.offset + t.nbytes) for t in (payload.inputs[number] for number, _ in places))
        commands, program, moved = _move_reads(
            payload.commands, payload.scratch_bytes, windows, tuple(place for _, place in places)
        )
        if not moved:
            return None
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * self._inputs.size_bytes).from_address(base))
        return self._create(replace(payload, commands=commands), program, {_REGION: memory}), frozenset(places[k][0] for k in moved)


@lru_cache(maxsize=_CACHED_STREAMS)
def _move_reads(
    commands: bytes, scratch_bytes: int, windows: tuple[Window, ...], places: tuple[int, ...]
) -> tuple[bytes, Program, tuple[int, ...]]:
    inputs = Inputs(commands, scratch_bytes, windows)
    moved = tuple(inputs.movable(places))
    return *inputs.elsewhere({k: (_REGION, places[k]) for k in moved}), moved

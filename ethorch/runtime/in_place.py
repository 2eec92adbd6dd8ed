"""Buffers that a program keeps from call to call, read by the simulated NPU where ExecuTorch has them: as in generated firmware."""

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

_REGION = 3  # of the buffers: one that Vela's streams do not use
_KEPT_STREAMS = 32  # rewritten, for further loads of the same payload

#: Makes a machine for a payload whose stream, as that program has it, reads a region more, in the memory that is given.
MachineOver = Callable[[DelegatePayload, Program, Mapping[int, npt.NDArray[np.uint8]]], Machine]


@dataclass(frozen=True)
class Kept:
    """Where buffers lie that a delegate takes.

    Attributes:
        places: number of an input -> the byte of planned memory ``SHARED_MEMORY`` that it begins at.
        size_bytes: of this memory.
    """

    places: Mapping[int, int]
    size_bytes: int


def kept_inputs(methods: Iterable[Method]) -> dict[DelegatePayload, Kept]:
    """Which inputs of delegates are buffers that are kept; of payloads that one call takes."""
    found: dict[DelegatePayload, Kept] = {}
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
                found[payload] = Kept(places, method.memories[SHARED_MEMORY])
    return {payload: kept for payload, kept in found.items() if calls[payload] == 1}


class Buffers:
    """The buffers that one delegate takes, once it is known where the runtime has them."""

    def __init__(self, payload: DelegatePayload, kept: Kept, make: MachineOver):
        self._payload, self._kept, self._make = payload, kept, make
        self._base: int | None = None
        self._found: tuple[Machine, frozenset[int]] | None = None

    def reader(self, inputs: Any) -> tuple[Machine, frozenset[int]] | None:
        """What reads the inputs of a call where they lie, and the numbers of those that it does; None where it can read none.

        Args:
            inputs: their addresses, by number.
        """
        bases = {inputs[number] - place for number, place in self._kept.places.items()}
        if len(bases) != 1:
            return None
        base = bases.pop()
        if base != self._base:
            self._base, self._found = base, self._made(base)
        return self._found

    def _made(self, base: int) -> tuple[Machine, frozenset[int]] | None:
        payload, places = self._payload, tuple(self._kept.places.items())
        windows = tuple(Window(t.offset, t.offset + t.nbytes) for t in (payload.inputs[number] for number, _ in places))
        commands, program, moved = _reading(payload.commands, payload.scratch_bytes, windows, tuple(place for _, place in places))
        if not moved:
            return None
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * self._kept.size_bytes).from_address(base))
        return self._make(replace(payload, commands=commands), program, {_REGION: memory}), frozenset(places[k][0] for k in moved)


@lru_cache(maxsize=_KEPT_STREAMS)
def _reading(
    commands: bytes, scratch_bytes: int, windows: tuple[Window, ...], places: tuple[int, ...]
) -> tuple[bytes, Program, tuple[int, ...]]:
    """The commands that read inputs at bytes of region 3, and which of them they read there."""
    inputs = Inputs(commands, scratch_bytes, windows)
    moved = tuple(inputs.movable(places))
    return *inputs.elsewhere({k: (_REGION, places[k]) for k in moved}), moved

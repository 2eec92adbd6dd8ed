"""Buffers that firmware keeps from call to call, behind the arena: the NPU reads them where they lie."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ethorch.errors import MachineFault
from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import Method, Value
from ethorch.npu.in_place import IN_PLACE_ALIGNMENT, Inputs, Window

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reads:
    """The inputs of a delegate that its stream can read where they lie.

    Attributes:
        payload: of the delegate.
        inputs: how its stream reads what it is given of buffers.
        numbers: of those that it can read in place: number of the delegate's input -> that of ``inputs``.
    """

    payload: DelegatePayload
    inputs: Inputs
    numbers: Mapping[int, int]

    def scratch_end(self, numbers: Collection[int]) -> int:
        """Bytes of the scratch region that are left when these inputs lie elsewhere."""
        others = [tensor for n, tensor in enumerate(self.payload.inputs) if n not in numbers]
        ends = [tensor.offset + tensor.nbytes for tensor in (*others, *self.payload.outputs)]
        return max([self.inputs.scratch_end([self.numbers[n] for n in numbers]), *ends])

    def commands(self, offsets: Mapping[int, int]) -> bytes:
        """The stream that reads each input from this byte of region 1 on."""
        return self.inputs.elsewhere({self.numbers[n]: (1, offset) for n, offset in offsets.items()})[0]


def reads_in_place(method: Method, payloads: Mapping[int, DelegatePayload]) -> dict[int, Reads]:
    """Delegate -> which buffers, of those that are kept from call to call, its stream can read where they lie.

    None of a method for which ``all_have_contents`` says no.
    """
    if not all_have_contents(method):
        return {}
    calls = [call for call in method.calls if call.delegate is not None]
    times, found = Counter(call.delegate for call in calls), dict[int, Reads]()
    for call in calls:
        payload = payloads.get(-1 if call.delegate is None else call.delegate)
        if call.delegate is None or payload is None or times[call.delegate] > 1 or len(call.args) < len(payload.inputs):
            continue
        given = [n for n in range(len(payload.inputs)) if is_kept(method.values[call.args[n]])]
        windows = [Window(t.offset, t.offset + t.nbytes) for t in (payload.inputs[n] for n in given)]
        aligned = [n for n in given if payload.inputs[n].offset % IN_PLACE_ALIGNMENT == 0]
        if not aligned:
            continue
        try:
            inputs = Inputs(payload.commands, payload.scratch_bytes, windows)
        except MachineFault as fault:
            logger.debug("delegate %s reads copies of its buffers: %s", call.delegate, fault)
            continue
        numbers = {n: k for k, n in enumerate(given) if inputs.readable[k] and n in aligned}
        if numbers:
            found[call.delegate] = Reads(payload, inputs, numbers)
    return found


def is_kept(value: Value) -> bool:
    """Does a tensor lie where a program keeps buffers from call to call?"""
    return value.place is not None and value.place[0] >= SHARED_MEMORY


def all_have_contents(method: Method) -> bool:
    """Do all buffers that a method keeps from call to call begin with contents of the file? Else nothing would clear them."""
    kept = [value for value in method.values if is_kept(value)]
    begun = [(value.place, value.nbytes) for value in kept if value.data]

    def inside(value: Value) -> bool:
        assert value.place is not None
        memory, offset = value.place
        return any(
            place is not None and place[0] == memory and place[1] <= offset and offset + value.nbytes <= place[1] + nbytes
            for place, nbytes in begun
        )

    return all(map(inside, kept))

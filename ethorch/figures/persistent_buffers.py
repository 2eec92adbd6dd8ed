"""Buffers that firmware keeps from call to call, behind the arena: the NPU reads and writes them where they lie."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import Method, Value
from ethorch.npu.in_place import IN_PLACE_ALIGNMENT, Inputs, Window
from ethorch.support.errors import MachineFault

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reads:
    """The inputs of a delegate that its stream can read where they lie, and the outputs that it can write there.

    Attributes:
        payload: of the delegate.
        inputs: how its stream reads what it is given of buffers.
        numbers: of those that it can read in place: number of the delegate's input -> that of ``inputs``.
        outputs: the same of outputs that it can write in place, as all that reads what they replace has run by then.
    """

    payload: DelegatePayload
    inputs: Inputs
    numbers: Mapping[int, int]
    outputs: Mapping[int, int]

    def scratch_end(self, numbers: Collection[int], outputs: Collection[int]) -> int:
        """Bytes of the scratch region that are left when these inputs and outputs lie elsewhere."""
        others = [tensor for n, tensor in enumerate(self.payload.inputs) if n not in numbers]
        others += [tensor for n, tensor in enumerate(self.payload.outputs) if n not in outputs]
        ends = [tensor.offset + tensor.nbytes for tensor in others]
        return max([self.inputs.scratch_end([self.numbers[n] for n in numbers], [self.outputs[n] for n in outputs]), *ends])

    def commands(self, offsets: Mapping[int, int], outputs: Mapping[int, int]) -> bytes:
        """The stream that reads each input, and writes each output, from this byte of region 1 on."""
        reads = {self.numbers[n]: (1, offset) for n, offset in offsets.items()}
        return self.inputs.elsewhere(reads, {self.outputs[n]: (1, offset) for n, offset in outputs.items()})[0]


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
        count = len(payload.inputs)
        taken, given = [method.values[arg] for arg in call.args[:count]], [method.values[arg] for arg in call.args[count:]]
        reads = [n for n, value in enumerate(taken) if is_kept(value)]
        writes = [n for n, value in enumerate(given) if is_kept(value) and n < len(payload.outputs)]
        if not reads and not writes:
            continue
        try:
            windows = [_window(payload.inputs[n]) for n in reads]
            inputs = Inputs(payload.commands, payload.scratch_bytes, windows, outputs=[_window(payload.outputs[n]) for n in writes])
        except MachineFault as fault:
            logger.debug("delegate %s takes and gives copies of its buffers: %s", call.delegate, fault)
            continue
        numbers = {n: k for k, n in enumerate(reads) if inputs.readable[k] and _as_far(payload.inputs[n], taken[n])}
        outputs = {}
        for k, n in enumerate(writes):
            before = [numbers[m] for m in numbers if _share_bytes(taken[m], given[n])]
            alone = not any(_share_bytes(given[m], given[n]) for m in writes if m != n)
            apart = inputs.writable[k] and alone and _as_far(payload.outputs[n], given[n])
            if apart and all(inputs.follows(k, one) for one in before):
                outputs[n] = k
        if numbers or outputs:
            found[call.delegate] = Reads(payload, inputs, numbers, outputs)
    return found


def _window(tensor: IoTensor) -> Window:
    return Window(tensor.offset, tensor.offset + tensor.nbytes)


def _as_far(tensor: IoTensor, value: Value) -> bool:
    """Will the arena's place and the buffer's be as far from one another as commands want it, wherever buffers begin?"""
    return value.place is not None and not tensor.offset % IN_PLACE_ALIGNMENT and not value.place[1] % IN_PLACE_ALIGNMENT


def _share_bytes(one: Value, other: Value) -> bool:
    assert one.place is not None and other.place is not None
    (memory, start), (its_memory, its_start) = one.place, other.place
    return memory == its_memory and start < its_start + other.nbytes and its_start < start + one.nbytes


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

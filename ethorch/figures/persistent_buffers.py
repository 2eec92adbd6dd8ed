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
    """The delegate inputs and outputs that the command stream can access in place.

    Attributes:
        inputs: Accesses by the command stream to persistent inputs and outputs.
        numbers: Delegate input that can be read in place -> its index in ``inputs.readable``.
        outputs: Delegate output that can be written in place -> its index in ``inputs.writable``. The stream reads the
            overwritten buffer only before the write.
    """

    payload: DelegatePayload
    inputs: Inputs
    numbers: Mapping[int, int]
    outputs: Mapping[int, int]

    def scratch_end(self, numbers: Collection[int], outputs: Collection[int]) -> int:
        """Return the size of the scratch region, assuming that the given inputs and outputs are stored outside it."""
        others = [tensor for n, tensor in enumerate(self.payload.inputs) if n not in numbers]
        others += [tensor for n, tensor in enumerate(self.payload.outputs) if n not in outputs]
        ends = [tensor.offset + tensor.nbytes for tensor in others]
        return max([self.inputs.scratch_end([self.numbers[n] for n in numbers], [self.outputs[n] for n in outputs]), *ends])

    def commands(self, offsets: Mapping[int, int], outputs: Mapping[int, int]) -> bytes:
        """Return a command stream that accesses inputs and outputs at the given offsets in region 1."""
        reads = {self.numbers[n]: (1, offset) for n, offset in offsets.items()}
        return self.inputs.elsewhere(reads, {self.outputs[n]: (1, offset) for n, offset in outputs.items()})[0]


def reads_in_place(method: Method, payloads: Mapping[int, DelegatePayload]) -> dict[int, Reads]:
    """Return the in-place accesses to persistent buffers, by delegate number.

    Return an empty dict if :func:`all_have_contents` is False.
    """
    if not all_have_contents(method):
        return {}
    calls = [call for call in method.calls if call.delegate is not None]
    times, reads_by_delegate = Counter(call.delegate for call in calls), dict[int, Reads]()
    for call in calls:
        payload = payloads.get(-1 if call.delegate is None else call.delegate)
        if call.delegate is None or payload is None or times[call.delegate] > 1 or len(call.args) < len(payload.inputs):
            continue
        count = len(payload.inputs)
        input_values, output_values = (
            [method.values[arg] for arg in call.args[:count]],
            [method.values[arg] for arg in call.args[count:]],
        )
        reads = [n for n, value in enumerate(input_values) if is_kept(value)]
        writes = [n for n, value in enumerate(output_values) if is_kept(value) and n < len(payload.outputs)]
        if not reads and not writes:
            continue
        try:
            windows = [_window(payload.inputs[n]) for n in reads]
            inputs = Inputs(payload.commands, payload.scratch_bytes, windows, outputs=[_window(payload.outputs[n]) for n in writes])
        except MachineFault as fault:
            logger.debug("delegate %s copies its buffers: %s", call.delegate, fault)
            continue
        numbers = {n: k for k, n in enumerate(reads) if inputs.readable[k] and _is_aligned(payload.inputs[n], input_values[n])}
        outputs = {}
        for k, n in enumerate(writes):
            overlapped = [numbers[m] for m in numbers if _share_bytes(input_values[m], output_values[n])]
            is_alone = not any(_share_bytes(output_values[m], output_values[n]) for m in writes if m != n)
            is_movable = inputs.writable[k] and is_alone and _is_aligned(payload.outputs[n], output_values[n])
            if is_movable and all(inputs.follows(k, input_index) for input_index in overlapped):
                outputs[n] = k
        if numbers or outputs:
            reads_by_delegate[call.delegate] = Reads(payload, inputs, numbers, outputs)
    return reads_by_delegate


def _window(tensor: IoTensor) -> Window:
    return Window(tensor.offset, tensor.offset + tensor.nbytes)


def _is_aligned(tensor: IoTensor, value: Value) -> bool:
    return value.place is not None and not tensor.offset % IN_PLACE_ALIGNMENT and not value.place[1] % IN_PLACE_ALIGNMENT


def _share_bytes(left: Value, right: Value) -> bool:
    assert left.place is not None and right.place is not None
    (left_memory, left_start), (right_memory, right_start) = left.place, right.place
    return left_memory == right_memory and left_start < right_start + right.nbytes and right_start < left_start + left.nbytes


def is_kept(value: Value) -> bool:
    """Return True if a tensor is stored in the memory for persistent buffers."""
    return value.place is not None and value.place[0] >= SHARED_MEMORY


def all_have_contents(method: Method) -> bool:
    """Return True if the file contains initial values for all persistent buffers."""
    persistent = [value for value in method.values if is_kept(value)]
    initialized = [(value.place, value.nbytes) for value in persistent if value.data]

    def is_initialized(value: Value) -> bool:
        assert value.place is not None
        memory, offset = value.place
        return any(
            place is not None and place[0] == memory and place[1] <= offset and offset + value.nbytes <= place[1] + nbytes
            for place, nbytes in initialized
        )

    return all(map(is_initialized, persistent))

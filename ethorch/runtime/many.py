"""Many inputs through a program: the CPU's part in ExecuTorch's runtime, one input after the other, the NPU's part in batches.

The runtime runs one input at a time, and calls a delegate in the middle. So each input goes through it once up to its first
delegate, where its inputs are kept and the run is given up. The simulator then runs that delegate for all of them
(``ethorch.npu.run_many``). In the next round the runtime starts anew, is given what the delegate has left, and gets as far as the
next delegate, or to the end. The results are those of one call after the other, as long as a call leaves nothing behind for
the next: ``keeps_state`` says which programs do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch import npu
from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import Method
from ethorch.support.errors import MachineFault

Bytes = npt.NDArray[np.uint8]

MOST_DELEGATES = 8  # the CPU's part is run once more for each
LEAST_WORK = 1 << 26  # work units of the delegates from which a second way through the runtime pays: half a millisecond or so
MOST_INPUTS = 256  # on their way at a time
BATCH_BYTES = 1 << 26  # of delegates' inputs and outputs that are kept at a time
_RANDOM = ("rand", "bernoulli", "multinomial", "dropout", "normal")


def keeps_state(description: Method) -> bool:
    """Whether a call may depend on the calls before it: tensors that are written and kept, operators in place, random numbers."""
    names = [name.partition("::")[2].partition(".")[0] for name in description.operators]
    written = any(value.place is not None and (value.constant or value.place[0] >= SHARED_MEMORY) for value in description.values)
    return written or any(name.endswith("_") or name.startswith("copy_") or name.startswith(_RANDOM) for name in names)


class Paused(Exception):
    """A run of the runtime has come to a delegate whose results are not there yet."""


class Recording:
    """The inputs of one call on their way, its number, and what each delegate call gave, in the order of the calls."""

    def __init__(self, number: int, inputs: list[Any]) -> None:
        self.number, self.inputs = number, inputs
        self.done: list[list[Bytes]] = []
        self.waiting: tuple[int, list[Bytes]] | None = None
        self.result: list[Any] | None = None
        self._at = 0

    def start(self) -> None:
        """A run begins."""
        self._at, self.waiting = 0, None

    def call(self, number: int, payload: DelegatePayload, inputs: Any, outputs: Any) -> None:
        """A delegate is called: hand over what it has left, or raise Paused.

        Args:
            number: of the delegate.
            inputs, outputs: pointers to the tensors.
        """
        if self._at == len(self.done):
            self.waiting = (
                number,
                [np.frombuffer(ctypes.string_at(inputs[k], tensor.nbytes), np.uint8) for k, tensor in enumerate(payload.inputs)],
            )
            raise Paused
        for k, data in enumerate(self.done[self._at]):
            ctypes.memmove(outputs[k], data.ctypes.data, data.size)
        self._at += 1


def run_batch(
    recordings: Sequence[Recording],
    once: Callable[[Recording], None],
    payload: Callable[[int], DelegatePayload],
    machine: Callable[[DelegatePayload], npu.Machine],
    threads: int | None,
) -> None:
    """Bring inputs to their ends.

    Args:
        once: runs the runtime with a recording until it is paused or has its result.
        payload: of a delegate, by number.
        machine: makes a machine for a payload.

    Raises:
        MachineFault: the simulator stopped; its ``image`` is the recording's number.
    """
    left = list(recordings)
    while left:
        waiting: dict[int, list[Recording]] = {}
        for recording in left:
            once(recording)
            if recording.waiting is not None:
                waiting.setdefault(recording.waiting[0], []).append(recording)
        for delegate, those in waiting.items():
            try:
                _run_delegate(payload(delegate), those, machine, threads)
            except MachineFault as fault:
                original = fault.__cause__
                if fault.image is None or not isinstance(original, MachineFault):
                    raise
                raise original.of_image(those[fault.image].number) from original
        left = [recording for recording in left if recording.waiting is not None]


def _run_delegate(
    payload: DelegatePayload, recordings: list[Recording], machine: Callable[[DelegatePayload], npu.Machine], threads: int | None
) -> None:
    """Run one delegate for all that wait for it."""
    machines = [machine(payload)]
    rows = [recording.waiting[1] for recording in recordings if recording.waiting is not None]
    given = [(_place(tensor), np.stack([row[k] for row in rows])) for k, tensor in enumerate(payload.inputs)]
    if not given:  # the same for all
        machines[0].run()
        found = [machines[0].region(t.region)[t.offset : t.offset + t.nbytes].copy() for t in payload.outputs]
        for recording in recordings:
            recording.done.append(found)
        return
    outputs = [_place(tensor) for tensor in payload.outputs]
    results = npu.run_many(
        machines[0].program, given, outputs, threads=threads, machine=lambda: machines.pop() if machines else machine(payload)
    )
    for number, recording in enumerate(recordings):
        recording.done.append([data[number] for data in results])


def _place(tensor: IoTensor) -> npu.Place:
    return npu.Place(tensor.region, tensor.offset, tensor.nbytes)

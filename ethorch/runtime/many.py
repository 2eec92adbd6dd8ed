"""Run a stateless program for many samples, simulating each delegate for several samples at a time."""

# The runtime runs each sample up to the first delegate, records the delegate's inputs and aborts the run. The simulator then
# runs the delegate for all samples (``ethorch.npu.run_many``). In the next round, each run receives the recorded outputs and
# continues to the next delegate or the end.

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

MOST_DELEGATES = 8  # maximum number of delegates, because the CPU operators run once more for each delegate
LEAST_WORK = 1 << 26  # minimum work units (about 0.5 ms) for which running CPU operators again saves time
MOST_INPUTS = 256  # maximum number of samples in a batch
BATCH_BYTES = 1 << 26  # maximum bytes of recorded delegate inputs and outputs in a batch
_RANDOM = ("rand", "bernoulli", "multinomial", "dropout", "native_dropout", "normal")


def keeps_state(description: Method) -> bool:
    """Return True if the result of a call can depend on previous calls.

    This is the case if the method writes to constants or buffers, or uses in-place operators or random numbers.
    """
    names = [name.partition("::")[2].partition(".")[0] for name in description.operators]
    written = any(value.place is not None and (value.constant or value.place[0] >= SHARED_MEMORY) for value in description.values)
    return written or any(name.endswith("_") or name.startswith("copy_") or name.startswith(_RANDOM) for name in names)


class Paused(Exception):
    """The exception that ends a run at a delegate whose outputs are not yet recorded."""


class Recording:
    """The index and inputs of one sample, and the outputs of each delegate call, in order."""

    def __init__(self, number: int, inputs: list[Any]) -> None:
        self.number, self.inputs = number, inputs
        self.done: list[list[Bytes]] = []
        self.waiting: tuple[int, list[Bytes]] | None = None
        self.result: list[Any] | None = None
        self._at = 0

    def start(self) -> None:
        self._at, self.waiting = 0, None

    def call(self, number: int, payload: DelegatePayload, inputs: Any, outputs: Any) -> None:
        """Copy the recorded outputs of a delegate call. If its outputs are not recorded yet, record the inputs and raise Paused.

        Args:
            inputs, outputs: Pointers to the tensors.
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
    """Run all samples until their results are available.

    Args:
        once: Function that runs a sample until it pauses at a delegate or finishes.
        payload: Function that maps a delegate's number to its payload.

    Raises:
        MachineFault: The command stream is invalid. ``image`` is the sample's index.
    """
    unfinished = list(recordings)
    while unfinished:
        waiting: dict[int, list[Recording]] = {}
        for recording in unfinished:
            once(recording)
            if recording.waiting is not None:
                waiting.setdefault(recording.waiting[0], []).append(recording)
        for delegate, paused in waiting.items():
            try:
                _run_delegate(payload(delegate), paused, machine, threads)
            except MachineFault as fault:
                original = fault.__cause__
                if fault.image is None or not isinstance(original, MachineFault):
                    raise
                raise original.of_image(paused[fault.image].number) from original
        unfinished = [recording for recording in unfinished if recording.waiting is not None]


def _run_delegate(
    payload: DelegatePayload, recordings: list[Recording], machine: Callable[[DelegatePayload], npu.Machine], threads: int | None
) -> None:
    machines = [machine(payload)]
    rows = [recording.waiting[1] for recording in recordings if recording.waiting is not None]
    inputs = [(_place(tensor), np.stack([row[k] for row in rows])) for k, tensor in enumerate(payload.inputs)]
    if not inputs:  # the outputs are equal for all samples
        machines[0].run()
        region_bytes = [machines[0].region(t.region)[t.offset : t.offset + t.nbytes].copy() for t in payload.outputs]
        for recording in recordings:
            recording.done.append(region_bytes)
        return
    outputs = [_place(tensor) for tensor in payload.outputs]
    results = npu.run_many(
        machines[0].program, inputs, outputs, threads=threads, machine=lambda: machines.pop() if machines else machine(payload)
    )
    for number, recording in enumerate(recordings):
        recording.done.append([data[number] for data in results])


def _place(tensor: IoTensor) -> npu.Place:
    return npu.Place(tensor.region, tensor.offset, tensor.nbytes)

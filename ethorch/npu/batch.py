"""run_many: a program over many inputs, one image per thread.

Each thread has a machine of its own, so a further image needs no memory but its inputs and outputs. What the plan runs, runs
without Python's lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ethorch.npu.arrays import Array, Bytes
from ethorch.npu.machine import Machine
from ethorch.npu.plan import Images
from ethorch.npu.program import Program
from ethorch.support.errors import MachineFault

IMAGES_AT_ONCE = 16  # that compiled code runs before Python looks whether somebody wants to stop


@dataclass(frozen=True)
class Place:
    """Where an input or an output of a program lies."""

    region: int
    offset: int
    nbytes: int


def run_many(
    program: Program,
    inputs: Sequence[tuple[Place, Array]],
    outputs: Sequence[Place],
    scratch_bytes: int = 0,
    scratch_fast_bytes: int = 0,
    threads: int | None = None,
    machine: Callable[[], Machine] | None = None,
) -> list[Bytes]:
    """Run a program once for each image.

    A machine keeps its memory from one image to the next, as a board does: programs whose results depend on what was in scratch
    before are not for this.

    Args:
        inputs: for each input its place, and an array whose first axis is the images; the bytes of one are ``nbytes``.
        outputs: places of the outputs.
        scratch_bytes, scratch_fast_bytes: sizes of regions 1 and 2, of each machine.
        threads: how many images to run at a time; None takes the CPUs that this process may use.
        machine: makes the machines instead, one for each thread.

    Returns:
        For each output uint8[images, nbytes].

    Raises:
        MachineFault: what is wrong with the first image that does not get through, as ``Machine.run`` says it, or arrays
            that do not fit their places.
    """
    images = {len(array) for _, array in inputs}
    if len(images) != 1:
        raise MachineFault(
            f"the inputs hold {sorted(images)} images; all have to hold as many, and there has to be one input at least"
        )
    count = images.pop()
    given = [(place, _as_bytes(place, array)) for place, array in inputs]
    taken = [(place, np.empty((count, place.nbytes), np.uint8)) for place in outputs]
    wanted = max(1, min(threads or available_cpus(), count))

    def usual() -> Machine:
        return Machine(program, scratch_bytes, scratch_fast_bytes)

    batch = _Batch(given, taken, count)
    machines = [(machine or usual)() for _ in range(wanted)]
    for place, _ in (*given, *taken):
        size = machines[0].region(place.region).size
        if place.offset < 0 or place.offset + place.nbytes > size:
            raise MachineFault(f"bytes {place.offset}..{place.offset + place.nbytes} of region {place.region}, which has {size}")
    if wanted == 1:
        batch.work(machines[0])
    else:
        with ThreadPoolExecutor(wanted) as pool:
            futures = [pool.submit(batch.work, m) for m in machines]
            try:
                for future in futures:
                    future.result()
            finally:
                batch.stop()
    if batch.faults:
        image = min(batch.faults)
        raise batch.faults[image].of_image(image)
    return [data for _, data in taken]


def available_cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _as_bytes(place: Place, array: Array) -> Bytes:
    data = np.ascontiguousarray(array)
    data = data.reshape(len(data), int(np.prod(data.shape[1:]))).view(np.uint8)
    if data.shape[1] != place.nbytes:
        raise MachineFault(f"an image has {data.shape[1]} bytes for a place of {place.nbytes}")
    return data


class _Batch:
    """Images that threads take one after the other."""

    def __init__(self, given: list[tuple[Place, Bytes]], taken: list[tuple[Place, Bytes]], count: int):
        self.given, self.taken, self.count = given, taken, count
        self.faults: dict[int, MachineFault] = {}
        self._next = np.zeros(1, np.int64)  # shared with compiled code, which counts atomically
        self._lock = threading.Lock()

    def stop(self) -> None:
        """No further image is begun."""
        self._next[0] = self.count

    def work(self, machine: Machine) -> None:
        """Run images until there are none."""
        try:
            planned = machine.planned()
        except MachineFault as fault:  # of the stream, whatever the image
            self.faults[0] = fault
            return self.stop()
        if planned is None or not planned.plan.is_whole:
            while (image := self._take()) < self.count:
                self._one(machine, image)
            return
        images = Images(self._structs(self.given), self._structs(self.taken), self._next.ctypes.data, self.count)
        while self._next[0] < self.count:
            left = planned.run_images(images, IMAGES_AT_ONCE)
            if left is not None:  # data that compiled code may not run on
                self._one(machine, left)

    def _take(self) -> int:
        """The number of the next image, where no compiled code counts."""
        with self._lock:
            self._next[0] += 1
            return int(self._next[0]) - 1

    def _structs(self, places: list[tuple[Place, Bytes]]) -> list[tuple[int, int, int, int]]:
        return [(data.ctypes.data, place.nbytes, place.offset, place.region) for place, data in places]

    def _one(self, machine: Machine, image: int) -> None:
        try:
            for place, data in self.given:
                machine.region(place.region)[place.offset : place.offset + place.nbytes] = data[image]
            machine.run()
            for place, data in self.taken:
                data[image] = machine.region(place.region)[place.offset : place.offset + place.nbytes]
        except MachineFault as fault:
            self.faults[image] = fault
            self.stop()


__all__ = ["Place", "available_cpus", "run_many"]

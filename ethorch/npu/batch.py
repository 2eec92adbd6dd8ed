"""Run a ``Program`` on many images in parallel.

Each thread has its own machine. Compiled code runs without Python's global interpreter lock.
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

IMAGES_AT_ONCE = 16  # images that compiled code runs before Python checks for interrupts


@dataclass(frozen=True)
class Place:
    """The location of an input or output in memory."""

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
    """Run a ``Program`` once per image (set of inputs).

    A machine keeps its memory contents between images. Results must not depend on the initial contents of scratch.

    Args:
        inputs: (location, array) of each input, with images along axis 0.
        scratch_bytes, scratch_fast_bytes: Sizes of regions 1 and 2.
        threads: Number of threads. Default: the number of available CPUs.
        machine: Function that creates a machine, called once per thread. Default: ``Machine`` with the above sizes.

    Returns:
        uint8[images, nbytes] for each output.

    Raises:
        MachineFault: An array does not match its location, or a run fails. The first fault is reported.
    """
    images = {len(array) for _, array in inputs}
    if len(images) != 1:
        raise MachineFault(f"expected one or more inputs with the same number of images each, got image counts {sorted(images)}")
    count = images.pop()
    sources = [(place, _as_bytes(place, array)) for place, array in inputs]
    targets = [(place, np.empty((count, place.nbytes), np.uint8)) for place in outputs]
    threads_needed = max(1, min(threads or available_cpus(), count))

    def default_machine() -> Machine:
        return Machine(program, scratch_bytes, scratch_fast_bytes)

    batch = _Batch(sources, targets, count)
    machines = [(machine or default_machine)() for _ in range(threads_needed)]
    for place, _ in (*sources, *targets):
        size = machines[0].region(place.region).size
        if place.offset < 0 or place.offset + place.nbytes > size:
            raise MachineFault(
                f"bytes {place.offset}..{place.offset + place.nbytes} exceed region {place.region}, which has {size} bytes"
            )
    if threads_needed == 1:
        batch.work(machines[0])
    else:
        with ThreadPoolExecutor(threads_needed) as pool:
            futures = [pool.submit(batch.work, m) for m in machines]
            try:
                for future in futures:
                    future.result()
            finally:
                batch.stop()
    if batch.faults:
        image = min(batch.faults)
        raise batch.faults[image].of_image(image)
    return [data for _, data in targets]


def available_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _as_bytes(place: Place, array: Array) -> Bytes:
    data = np.ascontiguousarray(array)
    data = data.reshape(len(data), int(np.prod(data.shape[1:]))).view(np.uint8)
    if data.shape[1] != place.nbytes:
        raise MachineFault(f"expected {place.nbytes} bytes per image, got {data.shape[1]}")
    return data


class _Batch:
    def __init__(self, sources: list[tuple[Place, Bytes]], targets: list[tuple[Place, Bytes]], count: int):
        self.sources, self.targets, self.count = sources, targets, count
        self.faults: dict[int, MachineFault] = {}
        self._next = np.zeros(1, np.int64)  # shared with compiled code, which counts atomically
        self._lock = threading.Lock()

    def stop(self) -> None:
        self._next[0] = self.count

    def work(self, machine: Machine) -> None:
        try:
            planned = machine.compile_plan()
        except MachineFault as fault:  # a fault of the stream, independent of the image
            self.faults[0] = fault
            return self.stop()
        if planned is None or not planned.plan.is_whole:
            while (image := self._next_image()) < self.count:
                self._run_image(machine, image)
            return
        images = Images(self._structs(self.sources), self._structs(self.targets), self._next.ctypes.data, self.count)
        while self._next[0] < self.count:
            left = planned.run_images(images, IMAGES_AT_ONCE)
            if left is not None:  # compiled code does not support this data
                self._run_image(machine, left)

    def _next_image(self) -> int:
        with self._lock:
            self._next[0] += 1
            return int(self._next[0]) - 1

    def _structs(self, places: list[tuple[Place, Bytes]]) -> list[tuple[int, int, int, int]]:
        return [(data.ctypes.data, place.nbytes, place.offset, place.region) for place, data in places]

    def _run_image(self, machine: Machine, image: int) -> None:
        try:
            for place, data in self.sources:
                machine.region(place.region)[place.offset : place.offset + place.nbytes] = data[image]
            machine.run()
            for place, data in self.targets:
                data[image] = machine.region(place.region)[place.offset : place.offset + place.nbytes]
        except MachineFault as fault:
            self.faults[image] = fault
            self.stop()


__all__ = ["Place", "available_cpus", "run_many"]

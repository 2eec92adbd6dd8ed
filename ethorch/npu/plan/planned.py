"""Execute a compiled plan on the memory of a machine."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np

from ethorch.npu.counters import Tally
from ethorch.npu.memory import INTERNAL, Memory
from ethorch.npu.plan import layout
from ethorch.npu.plan.library import buffers
from ethorch.npu.plan.plan import Native, Plan
from ethorch.npu.prepared import Step


class Images:
    """The images of a batch, in the format of compiled code.

    Args:
        inputs, outputs: For each tensor, the host address of its first image, bytes per image, region offset, and region.
        counter: Address of the int64 index of the next image. Threads share this index.
        count: Number of images.
    """

    def __init__(self, inputs: list[tuple[int, int, int, int]], outputs: list[tuple[int, int, int, int]], counter: int, count: int):
        self.inputs, self.outputs = (
            (layout.Place * len(rows))(*(layout.Place(*row) for row in rows)) for rows in (inputs, outputs)
        )
        self.counter, self.count = counter, count


class Planned:
    """A plan and its memory, with the durations of the operations and the number of completed runs."""

    def __init__(self, plan: Plan, memory: Memory):
        self.plan = plan
        self.runs = 0
        self._memory = memory
        self._own = np.zeros(plan.own_bytes, np.uint8)
        self._sizes = {n: r.size for n, r in memory.regions.items()}
        self._times = {part: _Times(len(part.steps)) for part in plan.parts if isinstance(part, Native)}

    def machine(self) -> layout.Machine:
        addresses = layout.Machine()
        for number, region in self._memory.regions.items():
            assert region.size == self._sizes[number], f"region {number} has a different size than in the plan"
            addresses.region[layout.INTERNAL_INDEX if number == INTERNAL else number] = region.ctypes.data
        addresses.region[layout.OWN_INDEX] = self._own.ctypes.data
        return addresses

    def run(self, number: int, execute: Callable[[Step], None]) -> None:
        """Run all operations.

        Args:
            number: Index of the run, for ``tallies``.
            execute: Function that runs an operation in Python and raises its faults.
        """
        machine, work = self.machine(), buffers()
        for part in self.plan.parts:
            if isinstance(part, Step):
                execute(part)
                continue
            times, count, at = self._times[part], len(part.steps), 0
            while at < count:
                times.last_run = number
                end = self.plan.library.ethorch_run(part.address, at, count, machine, work.pointer, times.address)
                if end < 0:
                    raise MemoryError("cannot allocate the working memory of the simulator")
                times.add(at, end)
                at = end
                if end < count:
                    execute(part.steps[end])
                    at = end + 1
        self.runs += 1

    def run_images(self, images: Images, most: int) -> int | None:
        """Process up to ``most`` further images of a batch without updating ``tallies``. ``plan.is_whole`` must be True.

        Returns:
            Index of an image that must be processed in Python, or None.
        """
        part = self.plan.parts[0] if self.plan.parts else None
        image = ctypes.c_int64()
        address, count = (part.address, len(part.steps)) if isinstance(part, Native) else (0, 0)
        end = self.plan.library.ethorch_run_images(
            address, count, self.machine(), buffers().pointer, ctypes.addressof(images.inputs), len(images.inputs),
            ctypes.addressof(images.outputs), len(images.outputs), images.counter, images.count, most, image,
        )  # fmt: skip
        if end < 0:
            raise MemoryError("cannot allocate the working memory of the simulator")
        return None if end == count else image.value

    def tallies(self) -> Iterator[tuple[Step, Tally]]:
        """Yield the tallies of compiled operations."""
        for part, times in self._times.items():
            for k, step in enumerate(part.steps):
                if times.runs[k]:
                    yield step, Tally(int(times.runs[k]), times.total[k] * 1e-9, times.last_run, times.last[k] * 1e-9)


class _Times:
    def __init__(self, count: int):
        self.last, self.total, self.runs = (np.zeros(count, np.int64) for _ in range(3))
        self.address = ctypes.c_void_p(self.last.ctypes.data)
        self.last_run = 0

    def add(self, first: int, end: int) -> None:
        self.total[first:end] += self.last[first:end]
        self.runs[first:end] += 1

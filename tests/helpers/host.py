"""Machines and inputs for tests of the host runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ethorch import runtime
from ethorch.formats.payload import DelegatePayload


class Recorder:
    """The real machine, recording reads and writes of each run."""

    def __init__(self, payload: DelegatePayload, runs: list):
        self.payload, self.runs = payload, runs
        self.machine = runtime.npu_machine(payload)

    def region(self, index: int) -> np.ndarray:
        return self.machine.region(index)

    def _values(self, tensors) -> list[np.ndarray]:
        scratch = self.region(1)
        dtypes = {1: np.int8, 2: np.int16, 4: np.int32}
        return [scratch[t.offset : t.offset + t.nbytes].view(dtypes[t.element_size]).reshape(t.shape).copy() for t in tensors]

    def run(self) -> None:
        inputs = self._values(self.payload.inputs)
        self.machine.run()
        self.runs.append((self.payload, inputs, self._values(self.payload.outputs)))


class Stub:
    """A machine that only calls ``action`` with its scratch region."""

    def __init__(self, payload: DelegatePayload, action: Callable[[np.ndarray], None] = lambda scratch: None):
        self.scratch, self.action = np.zeros(payload.scratch_bytes, np.uint8), action

    def region(self, index: int) -> np.ndarray:
        return self.scratch

    def run(self) -> None:
        self.action(self.scratch)


TARGETS = {"cnn": "ethos-u55-128", "staged": "ethos-u65-256", "u85": "ethos-u85-256", "interrupted": "ethos-u55-256"}
INPUTS = {
    "cnn": [(1, 3, 32, 32)],
    "staged": [(1, 3, 16, 16)],
    "u85": [(1, 3, 16, 16)],
    "interrupted": [(1, 3, 8, 8), (1, 8, 8, 8)],
}


def random_inputs(name: str, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in INPUTS.get(name, [(1, 3, 16, 16)])]

"""Compare the calls of a language model's program with the TOSA reference model."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from ethorch.program.program import Program, record_of
from ethorch.runtime.delegate import Delegate
from ethorch.tosa import reference_model
from ethorch.tosa.ir import DTYPES


@dataclass
class Call:
    """Input and output bytes of a delegate."""

    taken: list[bytes]
    given: list[bytes]


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Record the calls of delegates on the simulated NPU, in order."""
    calls: list[Call] = []
    run = Delegate.run

    def record(self: Delegate, inputs: Any, outputs: Any) -> None:
        taken = [ctypes.string_at(inputs[k], x.nbytes) for k, x in enumerate(self.payload.inputs)]
        run(self, inputs, outputs)
        calls.append(Call(taken, [ctypes.string_at(outputs[k], x.nbytes) for k, x in enumerate(self.payload.outputs)]))

    with patch.object(Delegate, "run", record):
        yield calls


def equals_reference_model(program: Program, call: Call) -> bool:
    """Return True if the TOSA reference model computes the same bytes for the method's delegate."""
    assert record_of(program).build is not None
    (lowered,) = record_of(program).build.delegates
    arrays = [_array(data, value) for data, value in zip(call.taken, lowered.graph.inputs, strict=True)]
    found = reference_model.run(lowered.tosa, arrays)
    return all(np.ascontiguousarray(x).tobytes() == data for x, data in zip(found, call.given, strict=True))


def _array(data: bytes, value: Any) -> npt.NDArray[Any]:
    return np.frombuffer(data, DTYPES[value.dtype]).reshape(value.shape)

"""A function of int16 on all codes, while an operator's samples contain a few hundred."""

from __future__ import annotations

import numpy as np

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.tosa.layout import contiguous
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference

ALL = np.arange(-32768, 32768, dtype=np.int16).reshape(1, 256, 256)


def q(largest: float) -> QParams:
    """Return INT16 quantization parameters with the largest code at ``largest``."""
    return QParams((largest / 32767,), (0,), -32767, 32767, "INT16")


def traced(largest: float) -> tuple[Builder, QTensor]:
    """Return a builder and its input with every code."""
    b = Builder()
    return b, QTensor(b.input("x", ALL.shape, "INT16"), contiguous(ALL.shape), q(largest))


def computed(b: Builder, result: QTensor, target: str = "") -> np.ndarray:
    """Return the reference model's results for every code. With a target, the simulator's must be equal."""
    b.graph.outputs.append(result.value)
    verify(b.graph)
    (found,) = reference(serialize(b.graph), [ALL])
    if target:
        (same,) = machine(serialize(b.graph), [ALL], EthosUCompileSpec(target))
        np.testing.assert_array_equal(same.ravel(), found.ravel())
    return found.astype(np.int64).ravel()

"""Random small graphs over the operators' samples: what holds of one operator holds of twelve.

Each graph is drawn as a list of (sample, which tensors it reads), run by every layer, and compared as one operator is.
ETHORCH_GRAPHS sets how many the long run draws.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ethorch import EthosUCompileSpec
from ethorch.errors import Unsupported
from ethorch.ops import OPS
from ethorch.ops.spec import I8, Ints, Sample, Truth
from ethorch.tosa.flatbuffer import serialize
from tests import ladder
from tests.ops.test_samples import CONFIGS, REFUSED, TARGETS

LONG = int(os.environ.get("ETHORCH_GRAPHS", "2000"))
#: Functions that jump, or that PyTorch itself computes from rounded parts: one step of the input is any number of the output.
WILD = {spec.name for spec in OPS.values() if spec.bound > 6 or spec.steps}
SAMPLES = [
    (spec.name, index)
    for spec in {spec.name: spec for spec in OPS.values()}.values()
    for index, sample in enumerate(spec.samples)
    if spec.name not in WILD and any(True for _ in ladder._leaves(sample, I8))
]


@dataclass(frozen=True)
class Step:
    """One operator: whose sample it calls, and which of the tensors so far it reads (modulo their number)."""

    name: str
    index: int
    reads: tuple[int, ...]

    @property
    def sample(self) -> Sample:
        return OPS[self.name].samples[self.index]

    @property
    def inputs(self) -> list[Any]:
        return list(ladder._leaves(self.sample, ladder.INPUTS))


class Drawn(nn.Module):
    """The steps, one after the other; results that nobody reads are the outputs."""

    def __init__(self, steps: list[Step]):
        super().__init__()
        self.steps = steps
        self.calls = nn.ModuleList(ladder.Call(step.name, step.sample, seed) for seed, step in enumerate(steps))
        generator = torch.Generator().manual_seed(len(steps))
        for number, step in enumerate(steps):
            for place, kind in enumerate(step.inputs):
                if isinstance(kind, Ints):
                    ints = torch.randint(kind.low, kind.high + 1, kind.shape, generator=generator, dtype=getattr(torch, kind.dtype))
                    self.register_buffer(f"ints_{number}_{place}", ints)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        tensors, read, ends = [x], set(), []
        for number, (step, call) in enumerate(zip(self.steps, self.calls, strict=True)):
            arguments = []
            for place, (kind, chosen) in enumerate(zip(step.inputs, step.reads, strict=True)):
                if isinstance(kind, Ints):
                    arguments.append(getattr(self, f"ints_{number}_{place}"))
                    continue
                source = chosen % len(tensors)
                read.add(source)
                arguments.append(fitted(tensors[source], kind))
            result = call(*arguments)
            result = result[0] if isinstance(result, tuple) else result
            if result.dtype.is_floating_point:
                tensors.append(result)
            else:
                ends.append(result)
        return tuple([t for index, t in enumerate(tensors) if index not in read and index] + ends)


def fitted(x: Tensor, kind: I8 | Truth) -> Tensor:
    """``x`` in the shape and the range that the sample asks for: repeated, cut, viewed, bounded."""
    wanted = math.prod(kind.shape)
    if tuple(x.shape) != kind.shape:
        flat = x.flatten()
        if flat.numel() < wanted:
            flat = flat.repeat(-(-wanted // flat.numel()))
        x = flat[:wanted].view(kind.shape)
    if isinstance(kind, Truth):
        return x > 0
    if (kind.low, kind.high) != (-3.0, 3.0):
        return torch.sigmoid(x) * (kind.high - kind.low) + kind.low
    return torch.clamp(x, -3.0, 3.0)


@st.composite
def graphs(draw: Any, most: int) -> list[Step]:
    steps = []
    for name, index in draw(st.lists(st.sampled_from(SAMPLES), min_size=3, max_size=most)):
        step = Step(name, index, ())
        reads = draw(st.tuples(*[st.integers(-3, -1) for _ in step.inputs]))
        steps.append(Step(name, index, reads))
    return steps


def compare(q: ladder.Quantized, inputs: tuple[Tensor, ...], target: str, operators: int) -> None:
    """As ``ladder.climb``; one step at an operator may be several behind the next, and now and then many."""
    graph = ladder.lowered(q.program, target)
    tosa = serialize(graph)
    codes = q.input_codes(inputs)
    codes = [x.astype(np.int8) if value.dtype == "INT8" else x for x, value in zip(codes, graph.inputs, strict=True)]
    found = ladder.reference(tosa, codes)
    compiled = ladder.machine(tosa, codes, EthosUCompileSpec(target))
    for got, want in zip(compiled, found, strict=True):
        np.testing.assert_array_equal(got.ravel(), want.ravel())
    for want, got in zip(q.output_codes(inputs), found, strict=True):
        assert want.shape == got.shape
        distance = np.abs(want - got.astype(np.int64))
        wide = 64 if got.dtype == np.int16 else 1
        assert np.median(distance) <= (1 + operators / 4) * wide, (np.median(distance), want.ravel()[:10], got.ravel()[:10])
        assert np.mean(distance > (2 + operators) * wide) <= 0.1, (np.sort(distance.ravel())[-10:], want.ravel()[:10])


def check(steps: list[Step], target: str, activations: str) -> None:
    torch.manual_seed(0)
    module = Drawn(steps)
    samples = [(torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(seed)),) for seed in range(2)]
    results = module(*samples[0])
    assume(results and all(bool(torch.isfinite(result).all()) for result in results))
    q = ladder.quantized(module, samples, CONFIGS[activations](), target)
    try:
        compare(q, samples[0], target, len(steps))
    except Unsupported as refusal:
        dtypes, families = REFUSED[refusal.reason.id]
        assert activations in dtypes and target.split("-")[1] in families, refusal


quiet = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "print_blob": False}


def drawn(most: int) -> Any:
    return given(steps=graphs(most), target=st.sampled_from(TARGETS), activations=st.sampled_from(sorted(CONFIGS)))


@settings(max_examples=12, derandomize=True, phases=[Phase.generate], **quiet)
@drawn(5)
def test_a_dozen(steps: list[Step], target: str, activations: str) -> None:
    check(steps, target, activations)


@pytest.mark.long
@settings(max_examples=LONG, **quiet)
@drawn(12)
def test_many(steps: list[Step], target: str, activations: str) -> None:
    check(steps, target, activations)

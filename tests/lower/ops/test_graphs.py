"""Random small graphs over the operators' samples: what holds of one operator holds of twelve.

``tests.helpers.random_graphs`` draws them by number, too, and runs as many as one likes. Here Hypothesis draws, and shrinks
what fails.
ETHORCH_GRAPHS sets how many the long run draws.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.helpers import ladder
from tests.helpers.ladder import CONFIGS, TARGETS
from tests.helpers.random_graphs import MOST, SAMPLES, Drawn, Step, amplified, check, numbered

LONG = int(os.environ.get("ETHORCH_GRAPHS", "2000"))


@st.composite
def graphs(draw: Any, most: int) -> list[Step]:
    steps = []
    for name, index in draw(st.lists(st.sampled_from(SAMPLES), min_size=3, max_size=most)):
        step = Step(name, index, ())
        reads = draw(st.tuples(*[st.integers(-3, -1) for _ in step.inputs]))
        steps.append(Step(name, index, reads))
    return steps


quiet = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "print_blob": False}


def drawn(most: int) -> Any:
    return given(steps=graphs(most), target=st.sampled_from(TARGETS), activations=st.sampled_from(sorted(CONFIGS)))


@settings(max_examples=12, derandomize=True, phases=[Phase.generate], **quiet)
@drawn(5)
def test_a_dozen(steps: list[Step], target: str, activations: str) -> None:
    assume(check(steps, target, activations) != "not finite")


@pytest.mark.long
@settings(max_examples=LONG, **quiet)
@drawn(MOST)
def test_many(steps: list[Step], target: str, activations: str) -> None:
    assume(check(steps, target, activations) != "not finite")


#: What once failed: (steps, target, activations).
SEEN = {
    "a table of a softmax of one number": ([("aten.softmax.int", 6, (-1,)), ("aten.exp.default", 0, (-1,))], "u55-128", "int8"),
    "a norm of zeros": (
        [("aten.log_softmax.int", 6, (-1,)), ("aten._native_batch_norm_legit.no_stats", 1, (-1,))], "u65-256", "int8"),
    "a batch norm of zeros": (
        [("aten.avg_pool2d.default", 8, (-3,)), ("aten.max_pool2d.default", 4, (-1,)), ("aten.instance_norm.default", 1, (-1,)),
         ("aten.mean.dim", 2, (-2,)), ("aten.einsum.default", 0, (-3, -2)),
         ("aten._native_batch_norm_legit_no_training.default", 0, (-1,))], "u65-256", "int8"),
    "windows divided by less than their area": ([("aten.avg_pool2d.default", 11, (-3,))], "u85-256", "int8"),
    "several constant indices": (
        [("aten.index_put.default", 5, (-1, -1, -1, -1)), ("aten.relu.default", 0, (-1,))], "u55-128", "int16"),
    "a mean of many copies": (
        [("aten.maximum.default", 4, (-1,)), ("aten.mean.dim", 0, (-1,)), ("aten.mean.dim", 5, (-1,))], "u65-256", "int8"),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_what_once_failed(name: str) -> None:
    steps, target, activations = SEEN[name]
    assert check([Step(*step) for step in steps], f"ethos-{target}", activations) == "agrees"


@pytest.mark.parametrize(
    ("samples", "activations", "least", "most"),
    [
        ([("aten.convolution.default", 0), ("aten.add.Tensor", 0)], "int8", 1, 4),
        ([("aten.mean.dim", 5), ("aten.group_norm.default", 0)], "int16", 100, 32767),
    ],
)
def test_what_a_graph_makes_of_one_code(samples: list[tuple[str, int]], activations: str, least: int, most: int) -> None:
    """A norm of numbers that hardly vary amplifies; a convolution and a sum do not, and are held to the narrow bound."""
    steps = [Step(name, index, (-1,) * len(Step(name, index, ()).inputs)) for name, index in samples]
    inputs = (torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0)),)
    q = ladder.quantized(Drawn(steps), [inputs], CONFIGS[activations](), TARGETS[0])
    (found,) = amplified(q, inputs)
    assert least <= np.median(found) <= most


def test_numbers_name_graphs() -> None:
    assert numbered(7) == numbered(7) != numbered(8)
    assert {numbered(number)[1:] for number in range(60)} == {(target, act) for target in TARGETS for act in CONFIGS}

"""Random small graphs over the operators' samples: what holds of one operator holds of twelve.

``tests.ops.graphs`` draws them by number, too, and runs as many as one likes; here Hypothesis draws, and shrinks what fails.
ETHORCH_GRAPHS sets how many the long run draws.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.ops.graphs import MOST, SAMPLES, Step, check, numbered
from tests.ops.test_samples import CONFIGS, TARGETS

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


def test_numbers_name_graphs() -> None:
    assert numbered(7) == numbered(7) != numbered(8)
    assert {numbered(number)[1:] for number in range(60)} == {(target, act) for target in TARGETS for act in CONFIGS}

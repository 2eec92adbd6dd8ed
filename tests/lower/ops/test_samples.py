"""Every operator's every sample: each layer agrees with the next.

By default one or two samples of each operator on ethos-u55-128, with weights per channel (and per tensor where there are any); the
first also in int16, and in one of the dtypes on ethos-u85-256. The long run is every sample on each family. ``python -m
tests.helpers.ladder NAME`` climbs with one operator at once.
"""

from __future__ import annotations

import numpy as np
import pytest

from ethorch.support.errors import Unsupported
from tests.helpers import ladder
from tests.helpers.ladder import CASES, CONFIGS, REFUSED, SPECS, TARGETS, WEIGHTED, Export, export

U55, U65, U85 = TARGETS
INT16_ON = {name: (U55, U85)[number % 2] for number, name in enumerate(SPECS)}
NAMES = [f"{name}-{index}" for name, index in CASES]
#: A cross-section for `make check`: a product, a sum, a window, a table, a reduction, a selection, a movement, a composite.
CORE = (
    "aten.convolution.default", "aten.linear.default", "aten.add.Tensor", "aten.max_pool2d.default", "aten.sigmoid.default",
    "aten.mean.dim", "aten.where.self", "aten.cat.default", "aten.softmax.int", "aten.layer_norm.default",
)  # fmt: skip


def climb(case: Export, target: str) -> None:
    spec = SPECS[case.name]
    try:
        _, outputs = ladder.climb(case.q, case.inputs, target, tolerance=spec.bound if case.activations == "int8" else spec.bound16)
    except Unsupported as refusal:
        assert refusal.reason.id in REFUSED, refusal
        dtypes, families = REFUSED[refusal.reason.id]
        assert case.activations in dtypes and target.split("-")[1] in families, refusal
        return
    assert len(np.unique(outputs[0])) >= min(case.distinct // 4, 20), "an output that hardly varies proves nothing"


def marks(name: str, index: int = 0) -> list[pytest.MarkDecorator]:
    """First samples of some operators are in the cross-section, later ones in the long run."""
    return [pytest.mark.core] * (name in CORE and index == 0) + [pytest.mark.long] * (index > (SPECS[name].kind == "operator"))


@pytest.mark.parametrize(
    ("name", "index"), [pytest.param(*case, marks=marks(*case), id=id) for case, id in zip(CASES, NAMES, strict=True)]
)
def test_per_channel(name: str, index: int) -> None:
    case = export(name, index, "int8", True)
    for target in (U55, U85) if index == 0 and INT16_ON[name] == U55 else (U55,):
        climb(case, target)


@pytest.mark.parametrize(("name", "index"), [pytest.param(*case, marks=marks(*case)) for case in CASES if case[0] in WEIGHTED])
def test_per_tensor(name: str, index: int) -> None:
    climb(export(name, index, "int8", False), U55)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=marks(name) or [pytest.mark.long] * (spec.kind == "table" and spec.bound16 == 1))
        for name, spec in SPECS.items()
    ],
)
def test_int16(name: str) -> None:
    climb(export(name, 0, "int16", True), INT16_ON[name])


@pytest.mark.long
@pytest.mark.parametrize("activations", CONFIGS)
@pytest.mark.parametrize(("name", "index"), CASES, ids=NAMES)
def test_everywhere(name: str, index: int, activations: str) -> None:
    case = export(name, index, activations, True)
    for target in TARGETS:
        climb(case, target)


def test_every_operator_has_samples() -> None:
    assert [spec.name for spec in SPECS.values() if not spec.samples] == []

"""A pool with a stride above 3 becomes a few operations, and keeps every bit; Vela makes one of each result."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TUNING
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from tests.helpers.tosa_runs import reference, run_compiled

#: (height, width), kernel, stride, pad.
CASES: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int, int, int]]] = {
    "row": ((1, 64), (1, 4), (1, 4), (0, 0, 0, 0)), "column": ((41, 2), (5, 1), (9, 1), (0, 0, 0, 0)),
    "row of two": ((2, 42), (1, 2), (1, 8), (0, 0, 0, 0)), "overlapping": ((3, 49), (1, 5), (1, 4), (0, 0, 0, 0)),
    "squares": ((8, 10), (4, 5), (4, 5), (0, 0, 0, 0)), "overlapping squares": ((11, 9), (5, 5), (6, 4), (0, 0, 0, 0)),
    "padded": ((1, 49), (1, 5), (1, 4), (0, 0, 2, 2)),
    "low strides along the height": ((7, 20), (3, 4), (2, 4), (0, 0, 0, 0)), "gaps": ((1, 70), (1, 1), (1, 23), (0, 0, 0, 0)),
}  # fmt: skip


def pooled(name: str, dtype: str, shape: tuple[int, ...], kernel: Any, stride: Any, pad: Any) -> Graph:
    b = Builder()
    zero_points = {"AVG_POOL2D": {"input_zp": 3, "output_zp": 3} if dtype == "INT8" else {"input_zp": 0, "output_zp": 0}}
    x = b.input("x", shape, dtype)
    b.graph.outputs.append(b.emit(name, x, kernel=kernel, stride=stride, pad=pad, **zero_points.get(name, {})))
    return b.graph


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("operator", ["MAX_POOL2D", "AVG_POOL2D"])
@pytest.mark.parametrize("case", CASES)
def test_bits(case: str, operator: str, target: str) -> None:
    (height, width), *window = CASES[case]
    dtype = "INT8" if height % 2 else "INT16"
    graph = pooled(operator, dtype, (2, height, width, 3), *window)
    after = rewrite(copy.deepcopy(graph), tuning=replace(TUNING[target.split("-")[1]], fewest_results_of_wide_stride=1))
    assert max((stride for op in after.ops if "POOL" in op.name for stride in op.attrs["stride"]), default=0) <= 3
    codes = [np.random.default_rng(1).integers(-100, 100, (2, height, width, 3)).astype(dtype.lower())]
    (wanted,) = reference(serialize(graph), codes)
    np.testing.assert_array_equal(reference(serialize(after), codes)[0], wanted)
    np.testing.assert_array_equal(
        run_compiled(vela.compile(serialize(after), EthosUCompileSpec(target)), codes)[0].ravel(), wanted.ravel()
    )


@pytest.mark.parametrize("kernel", [4, 8])
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_long_rows_are_compiled_at_once(target: str, kernel: int) -> None:
    """15,000 results kept Vela 5.2 busy for 50 to 130 seconds."""
    graph = pooled("MAX_POOL2D", "INT8", (1, 1, 60_000, 4), (1, kernel), (1, 4), (0, 0, 0, 0))
    compiled = vela.compile(serialize(rewrite(graph, tuning=TUNING[target.split("-")[1]])), EthosUCompileSpec(target))
    assert len(compiled.command_stream) < 1500

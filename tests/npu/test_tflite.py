"""Operators only TFLite graphs give: built-in TANH and SIGMOID, LRELU, against what they compute, on all int16 inputs.

U85 reads the tanh table from constants that Vela emits, U55 and U65 have it built in: equal bytes say our table is theirs.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.npu_graphs import compile_graph, run_machine
from tests.helpers.tflite import unary_model

ALL_INPUTS = np.arange(-32768, 32768).astype(np.int16).reshape(1, 16, 64, 64)
TARGETS = ("u55-32", "u55-128", "u65-512", "u85-256", "u85-1024")


def outputs(*args, **kw) -> dict[str, np.ndarray]:
    model = unary_model(*args, ALL_INPUTS.shape, **kw)
    return {t: run_machine(compile_graph(model, t, fmt="TFLITE"), [ALL_INPUTS])[0].ravel() for t in TARGETS}


@pytest.mark.parametrize(
    ("operator", "function"), [("TANH", np.tanh), ("LOGISTIC", lambda v: 1 / (1 + np.exp(-v)))], ids=["tanh", "logistic"]
)
def test_built_in_tables(operator, function):
    results = outputs(operator, 1 / 4096, 1 / 32768)
    exact = function(ALL_INPUTS.ravel() / 4096) * 32768
    for target, got in results.items():
        assert np.array_equal(got, results["u85-256"]), target
        assert np.abs(got - exact).max() < 1.5


def test_leaky_relu():
    results = outputs("LEAKY_RELU", 1 / 4096, 1 / 4096, alpha=0.3)
    x = ALL_INPUTS.ravel().astype(np.float64)
    for target, got in results.items():
        assert np.array_equal(got, results["u85-256"]), target
        # TFLite rounds twice: to halves, then halves away from zero.
        assert np.abs(got - np.where(x >= 0, x, 0.3 * x)).max() <= 0.76

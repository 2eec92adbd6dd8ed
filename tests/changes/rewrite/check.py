"""Check that two REVERSEs along one axis go, two along different axes stay, and no bit changes."""

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.tosa.interpreter import run
from ethorch.tosa.ir import Graph


def reversed_along(*axes: int) -> Graph:
    b = Builder()
    value = b.input("x", (1, 6, 5, 4), "INT8")
    for axis in axes:
        value = b.emit("REVERSE", value, axis=axis)
    b.graph.outputs.append(b.emit("CLAMP", value, min_val=-9, max_val=44))
    return b.graph


codes = np.random.default_rng(0).integers(-128, 128, (1, 6, 5, 4)).astype(np.int8)
for axes, expected in (((2, 2), ["CLAMP"]), ((1, 2), ["REVERSE", "REVERSE", "CLAMP"])):
    graph = rewrite(reversed_along(*axes))
    operators = [op.name for op in graph.ops]
    assert operators == expected, f"REVERSEs along the axes {axes} became {operators}"
    np.testing.assert_array_equal(run(graph, [codes])[0], run(reversed_along(*axes), [codes])[0])

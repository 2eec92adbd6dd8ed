"""The coverage page is current, and what remains different from the reference is as documented."""

from __future__ import annotations

import numpy as np
import pytest

from ethorch.npu import Program
from tests.helpers import npu_coverage as coverage
from tests.helpers.npu_graphs import Graph, compile_graph, draw, reference, run_machine
from tests.npu.fuzzing import STOP, payload


def test_the_page_lists_what_the_streams_hold():
    values = coverage.gather(coverage.programs(("u55-128", "u65-512", "u85-256")))
    assert coverage.named(values) <= coverage.on_page(coverage.PAGE.read_text()), "run `python -m tests.helpers.npu_coverage`"


@pytest.mark.long
def test_the_page_is_current():
    text = coverage.page(coverage.gather(coverage.programs()))
    assert coverage.PAGE.read_text() == text, "run `python -m tests.helpers.npu_coverage`"


def test_a_value_that_is_not_exercised_is_noticed():
    program = Program(payload([0x10007], STOP, target="u85-256"))  # NPU_OP_RESIZE REPLICATE
    assert coverage.unexercised([program]) == [("u85", "NPU_OP_RESIZE.mode", "REPLICATE")]


@pytest.mark.parametrize("target", ["u55-32", "u55-128", "u65-512", "u85-256"])
@pytest.mark.parametrize(("source", "result"), [("INT32", np.int8), ("INT16", np.int8), ("INT32", np.int16)])
def test_narrowing_casts_out_of_range(target, source, result):
    """TOSA keeps the low bits. Vela gives U55 and U65 an addition, which saturates; on U85 it keeps the low bits, too."""
    graph = Graph(1)
    x = graph.input(1, 6, 5, 20, dtype=source)
    graph.output(graph.op("CAST", [x], x.shape, result.__name__.upper()))
    tosa = graph.serialize()
    arrays = draw(graph, 1)
    wanted = np.ravel(reference(tosa, arrays)[0])
    got = run_machine(compile_graph(tosa, target), arrays)[0].ravel()
    assert np.array_equal(wanted, arrays[0].ravel().astype(result))
    if target.startswith("u85"):
        assert np.array_equal(got, wanted)
    else:
        info = np.iinfo(result)
        assert np.array_equal(got, np.clip(arrays[0].ravel(), info.min, info.max))

"""Every operator's every sample on all eleven configurations: machine equals TOSA reference model, bit for bit.

``tests/ops/test_samples.py`` climbs from PyTorch to the machine on one NPU of each family; here it is the streams that
matter. They are run with the optional checks, and every command and register value in them has to be on the coverage page.
"""

from __future__ import annotations

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.errors import Unsupported
from ethorch.npu import Program
from ethorch.target.npus import TARGETS
from ethorch.tosa.serialize import serialize
from tests.support import ladder
from tests.support import npu_coverage as coverage


@pytest.mark.long
@pytest.mark.parametrize("activations", ladder.CONFIGS)
@pytest.mark.parametrize(("name", "index"), ladder.CASES, ids=[f"{name}-{index}" for name, index in ladder.CASES])
def test_every_sample_everywhere(name: str, index: int, activations: str) -> None:
    case = ladder.export(name, index, activations, True)
    found: dict[bytes, list[np.ndarray]] = {}  # configurations of a family have one graph
    for target in TARGETS:
        try:
            graph = ladder.lowered(case.q.program, target)
        except Unsupported:
            continue
        tosa = serialize(graph)
        codes = case.q.input_codes(case.inputs)
        codes = [x.astype(np.int8) if value.dtype == "INT8" else x for x, value in zip(codes, graph.inputs, strict=True)]
        if tosa not in found:
            found[tosa] = ladder.reference(tosa, codes)
        compiled = vela.compile(tosa, EthosUCompileSpec(target))
        for got, want in zip(ladder.run_compiled(compiled, codes, ("uninitialized", "overlap")), found[tosa], strict=True):
            np.testing.assert_array_equal(got.ravel(), want.ravel(), err_msg=target)
        assert not coverage.unexercised([Program(compiled.command_stream)]), target

"""Every operator's every sample on all eleven configurations: machine equals TOSA reference model, bit for bit.

``tests/lower/ops/test_samples.py`` climbs from PyTorch to the machine on one NPU of each family; here it is the streams that
matter. They are run as a plan, in NumPy and with the optional checks, and every command and register value in them has to be on the
coverage page. ``tests/ops`` runs all samples both ways on one NPU; here a share of them, on each configuration, is run always.
"""

from __future__ import annotations

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.npu import Program
from ethorch.support.errors import Unsupported
from ethorch.targets.npus import TARGETS
from ethorch.tosa.serialize import serialize
from tests.helpers import ladder
from tests.helpers import npu_coverage as coverage

STEP = 25  # of so many samples one is run on one configuration in the default tests: all configurations, both precisions
SHARE = [(*case, list(TARGETS)[n % len(TARGETS)], list(ladder.CONFIGS)[n % 2]) for n, case in enumerate(ladder.CASES[::STEP])]


@pytest.mark.long
@pytest.mark.parametrize("activations", ladder.CONFIGS)
@pytest.mark.parametrize(("name", "index"), ladder.CASES, ids=[f"{name}-{index}" for name, index in ladder.CASES])
def test_every_sample_everywhere(name: str, index: int, activations: str) -> None:
    check(name, index, activations, list(TARGETS))


@pytest.mark.parametrize(("name", "index", "target", "activations"), SHARE, ids=[f"{n}-{i}-{t}-{a}" for n, i, t, a in SHARE])
def test_some_samples_everywhere(name: str, index: int, target: str, activations: str) -> None:
    check(name, index, activations, [target])


def check(name: str, index: int, activations: str, targets: list[str]) -> None:
    """One sample on some configurations: reference model, plan and NumPy agree."""
    case = ladder.export(name, index, activations, True)
    found: dict[bytes, list[np.ndarray]] = {}  # configurations of a family have one graph
    for target in targets:
        try:
            graph = ladder.lowered(case.q.converted, target)
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

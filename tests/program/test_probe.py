"""The probe: the same network with Vela's stream, with each pass, and with all passes."""

from __future__ import annotations

import pytest
import torch

from ethorch.formats import pte
from ethorch.npu.passes.names import PASSES
from ethorch.program.probe import build_probe
from ethorch.targets.npus import TARGETS
from ethorch.targets.settings import Settings

#: Passes that change the network's stream on every NPU of a family, in the default memory mode.
CHANGING = {
    "u55": {"attention", "copy_elision", "block_sizes"}, "u65": {"attention", "copy_elision", "block_sizes"},
    "u85": {"copy_elision", "dma_copies", "block_sizes"},
}  # fmt: skip


@pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=() if name in ("ethos-u55-128", "ethos-u85-256") else pytest.mark.long, id=name) for name in TARGETS],
)
def test_each_stream_computes_the_same_bytes(target: str) -> None:
    probe = build_probe(Settings(target=target), runs=20)
    methods = probe.program.methods
    assert set(methods) >= {"vela", "optimized"} | CHANGING[TARGETS[target].family]
    assert set(methods) <= {"vela", "optimized", *(name.replace("-", "_") for name in PASSES)}
    assert len(probe.calls) * probe.repeats >= 20 * len(methods)
    inputs = [sample for name, sample in probe.calls if name == "vela"]
    assert not torch.equal(inputs[0][0], inputs[1][0]) and not torch.equal(inputs[0][1], inputs[1][1])
    expected = probe.program["vela"](*inputs[0])
    assert all(len(torch.unique(output)) > 20 for output in expected)
    for name in methods:
        assert all(map(torch.equal, probe.program[name](*inputs[0]), expected)), name
    parsed = pte.read(probe.program.pte)
    assert len({delegate.payload.commands for method in parsed.methods.values() for delegate in method.delegates}) == len(methods)

"""What a method allocates, and the figures, of files by ExecuTorch's own Arm backend."""

from __future__ import annotations

import pytest

from ethorch import runtime
from ethorch.figures import layers, memory
from ethorch.formats import pte
from ethorch.support.errors import HostError, SpecError
from tests.helpers.host import INPUTS, TARGETS


@pytest.mark.parametrize("name", INPUTS)
def test_figures_of_the_incumbents_files(incumbent, name) -> None:
    data = (incumbent / f"{name}.pte").read_bytes()
    report, allocated = memory(data), runtime.measure(data)
    assert allocated.method_pool_bytes == report.method_pool_bytes_host
    assert sum(allocated.planned) == report.arena_bytes
    assert allocated.temporary_bytes == report.temporary_bytes_host == report.regions["scratch"]
    assert report.flash_bytes == len(data)
    assert report.constants_in_sram == TARGETS[name].startswith("ethos-u85")
    assert ("staging" in report.regions) == TARGETS[name].startswith("ethos-u65")
    found = layers(incumbent / f"{name}.pte")
    calls = pte.read(data).methods["forward"].calls
    assert [layer.operator for layer in found if layer.where == "CPU"] == [c.operator for c in calls if c.delegate is None]
    assert {layer.delegate for layer in found if layer.where == "NPU"} == {c.delegate for c in calls if c.delegate is not None}
    assert sum(layer.macs for layer in found) > 0


def test_measuring_counts_no_run_of_the_simulator(incumbent) -> None:
    data = (incumbent / "cnn.pte").read_bytes()
    assert runtime.measure(data) == runtime.measure(data)
    with pytest.raises(SpecError, match="no method 'backward'"):
        runtime.measure(data, "backward")
    with pytest.raises(HostError, match="load method 'forward'"):
        runtime.measure(data, method_pool_bytes=64)
    assert len(runtime.load(data).delegates) == 1  # a failed measurement leaves the runtime as it was

"""The memory of the whole application: what the report says is what ExecuTorch's allocators give out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.backend.build import build_pte
from ethorch.figures import MemoryReport, memory
from ethorch.figures.memory_report import TensorPlace, occupied_bytes
from ethorch.figures.method_pool import HOST, kernel_temporary_bytes, max_lookup_use
from ethorch.formats import pte
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.runtime.allocations import measure
from ethorch.support.errors import EthorchError, FormatError, HostError
from ethorch.targets.vela_ini import find_shipped_root
from tests.figures.programs import CASES, built


@pytest.mark.parametrize("name", CASES)
def test_what_is_allocated_is_what_the_report_says(name: str) -> None:
    program = built(name).pte
    report, allocated = memory(program), measure(program)
    method = pte.read(program).methods["forward"]
    kernels = max(max_lookup_use(method, HOST), kernel_temporary_bytes(method))
    assert allocated.method_pool_bytes == report.method_pool_bytes_host
    assert sum(allocated.planned) == report.arena_bytes
    assert allocated.temporary_bytes == max(report.regions.get("scratch", 0), kernels) <= report.temporary_bytes_host
    if report.regions.get("scratch", 0) >= report.temporary_bytes_host:
        assert allocated.total_bytes == report.arena_bytes + report.method_pool_bytes_host + report.temporary_bytes_host


@pytest.mark.parametrize("name", ["picture", "two_delegates", "on_cpu", "branches"])
def test_the_reported_pools_are_enough_and_one_byte_less_is_not(name: str) -> None:
    program = built(name).pte
    report = memory(program)
    pools = {"method_pool_bytes": report.method_pool_bytes_host, "temporary_bytes": report.temporary_bytes_host}
    assert measure(program, **pools).method_pool_bytes == report.method_pool_bytes_host
    with pytest.raises(HostError, match="load method"):
        measure(program, **{**pools, "method_pool_bytes": pools["method_pool_bytes"] - 1})
    if report.regions.get("scratch", 0) == report.temporary_bytes_host:
        with pytest.raises(HostError, match="too small for the scratch region"):
            measure(program, **{**pools, "temporary_bytes": pools["temporary_bytes"] - 1})


@pytest.mark.parametrize("name", CASES)
def test_components_add_up(name: str) -> None:
    build = built(name)
    report = memory(build)
    assert report.flash_bytes == len(build.pte)
    assert all(component.ram_bytes >= 0 and component.flash_bytes >= 0 for component in report.components)
    assert sum(report.memories.values()) == report.ram_bytes
    assert report.ram_bytes >= report.arena_bytes + report.temporary_bytes + report.method_pool_bytes
    assert 0 < report.method_pool_bytes < report.method_pool_bytes_host
    assert len({component.name for component in report.components}) == len(report.components)
    assert sum(delegate.compiled.scratch_bytes for delegate in build.delegates) == sum(
        sizes.get("scratch", 0) for sizes in report.scratch_bytes.values()
    )


@pytest.mark.parametrize("name", CASES)
def test_a_file_tells_the_same_sizes_as_its_build(name: str) -> None:
    build = built(name)
    report, told = memory(build), memory(build.pte)
    assert told.components == report.components
    assert (told.sram_bytes, told.regions) == (report.sram_bytes, report.regions)


@pytest.mark.parametrize("name", CASES)
def test_tensors_lie_in_their_regions_and_do_not_overlap_while_alive(name: str) -> None:
    report = memory(built(name))
    if name != "on_cpu":
        assert any(tensor.region == "scratch" for tensor in report.tensors)
    for tensor in report.tensors:
        assert tensor.address >= 0 and tensor.end <= report.regions[tensor.region], tensor
        assert 0 <= tensor.first <= tensor.last < report.layer_count
    planned = [tensor for tensor in report.tensors if tensor.delegate is None]
    for number, one in enumerate(planned):
        for other in planned[:number]:
            together = one.region == other.region and one.first < other.last and other.first < one.last
            apart = one.end <= other.address or other.end <= one.address
            assert apart or not together or {one.name[:2], other.name[:2]} == {"va"}, (one, other)


@pytest.mark.parametrize("name", ["picture", "picture_u85_sram_only", "picture_u65_dedicated_sram", "two_delegates"])
def test_the_peak_is_what_the_region_is_as_large_as(name: str) -> None:
    report = memory(built(name))
    for region, size in report.regions.items():
        owners = report.peak_owners(region)
        assert size - 16 < max(tensor.end for tensor in owners) <= size
        assert [tensor.size_bytes for tensor in owners] == sorted((t.size_bytes for t in owners), reverse=True)
        assert set(owners) <= set(report.alive(region, report.peak_layer(region)))
        assert sum(tensor.size_bytes for tensor in owners) <= size
        most = max(used for _, used in report.use_over_time(region))
        assert 0 < most <= size


def test_tensors_that_share_an_address_count_once() -> None:
    places = [
        TensorPlace(str(start), "scratch", 0, start, size, 0, 1, 0, 3) for start, size in ((0, 16), (0, 16), (8, 16), (32, 4))
    ]
    assert occupied_bytes(places) == 24 + 4 and occupied_bytes([]) == 0


def test_owners_of_the_peak_have_module_and_line() -> None:
    owners = memory(built("picture")).peak_owners("scratch")
    assert {owner.module for owner in owners} & {"stem", "wide"}
    assert all(owner.source.startswith("programs.py:") for owner in owners if owner.module)


def test_sram_only_has_its_weights_in_ram() -> None:
    build = built("picture_u85_sram_only")
    assert EthosUCompileSpec("ethos-u85-256").memory_system.constants_in_sram
    report, estimate = memory(build), build.delegates[0].performance
    weights = report.component("weights")
    assert report.constants_in_sram and weights.memory == "Sram"
    assert weights.ram_bytes == weights.flash_bytes == len(build.delegates[0].payload.weights)
    assert report.memories["Sram"] == report.sram_bytes + weights.ram_bytes
    assert abs(report.memories["Sram"] - estimate.sram_bytes) < 64
    other = memory(built("picture"))
    assert not other.constants_in_sram and other.component("weights").ram_bytes == 0


def test_dedicated_sram_has_feature_maps_in_both_memories() -> None:
    build = built("picture_u65_dedicated_sram")
    report = memory(build)
    assert report.component("scratch").memory == "Dram" and report.component("staging").memory == "Sram"
    assert report.sram_bytes == build.delegates[0].compiled.scratch_fast_bytes
    assert report.temporary_bytes == build.delegates[0].compiled.scratch_bytes
    assert report.component("weights").memory == "Dram" and report.component("weights").ram_bytes > 0
    assert {tensor.region for tensor in report.tensors if tensor.delegate == 0} == {"scratch", "staging"}


def test_state_lives_from_the_first_layer_to_the_last_under_a_name() -> None:
    report = memory(built("state"))
    (state,) = [tensor for tensor in report.tensors if (tensor.name, tensor.delegate) == ("total", None)]
    assert state.size_bytes == 16  # codes of int8
    assert (state.first, state.last) == (0, report.layer_count - 1)


def test_reports_survive_json() -> None:
    for name in ("picture_u65_dedicated_sram", "two_delegates"):
        report = memory(built(name))
        text = json.dumps(report.to_json())
        assert MemoryReport.from_json(json.loads(text)) == report
    assert {"ram_bytes", "flash_bytes", "sram_bytes", "components", "tensors", "peaks"} <= report.to_json().keys()
    with pytest.raises(FormatError, match=r"expected the result of MemoryReport\.to_json"):
        MemoryReport.from_json({"tensors": []})


def test_what_is_not_there_is_named() -> None:
    report = memory(built("on_cpu"))
    with pytest.raises(EthorchError, match=r"known tensors \(arena_1"):
        report.peak_owners("scratch")
    with pytest.raises(EthorchError, match=r"expected one of the components .*program"):
        report.component("weights")
    with pytest.raises(EthorchError, match="no method 'backward'; it has 'forward'"):
        memory(built("on_cpu"), "backward")
    with pytest.raises(EthorchError, match="cannot read"):
        memory("/nowhere/at/all.pte")


def test_delegates_of_one_program_share_the_temporary_allocator() -> None:
    build = built("two_delegates")
    sizes = [delegate.compiled.scratch_bytes for delegate in build.delegates]
    assert len(sizes) == 2 and memory(build).temporary_bytes == max(sizes) < sum(sizes)
    assert len(pte.read(build.pte).methods["forward"].delegates) == 2


@pytest.mark.parametrize("name", [name for name in CASES if name != "on_cpu"])
def test_a_file_alone_tells_how_far_its_regions_are_used(name: str) -> None:
    """Tensors by the commands: nothing lies outside its region, and the peaks are those of Vela's plan."""
    told = memory(built(name).pte)
    for tensor in told.tensors:
        assert tensor.address >= 0 and tensor.end <= told.regions[tensor.region], tensor
        assert 0 <= tensor.first <= tensor.last < told.layer_count
    for region, size in told.regions.items():
        owners = told.peak_owners(region)
        assert size - 64 < max(tensor.end for tensor in owners) <= size, (region, size, owners)
        assert owners[0].name


def test_an_ini_file_of_the_users_is_known_of_a_build_and_has_to_be_given_with_a_file(tmp_path: Path) -> None:
    ini = tmp_path / "board.ini"
    ini.write_text((find_shipped_root() / "Arm" / "vela.ini").read_text())
    spec = EthosUCompileSpec("ethos-u85-256", config_ini=str(ini))
    case = CASES["picture"]
    user = UserModel(case.model().eval(), case.inputs())
    build = build_pte(quantize(user, spec), user.example_inputs, spec)
    assert memory(build).constants_in_sram and memory(build.pte, spec=spec).constants_in_sram
    unknown = memory(build.pte)
    assert not unknown.constants_in_sram and unknown.component("scratch").memory == "Ram"
    assert unknown.sram_bytes == memory(build).sram_bytes


class Remembers(nn.Module):
    """A layer and a buffer that two methods share."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("kept", torch.zeros(1, 8))
        self.kept: Tensor


class Writes(nn.Module):
    def __init__(self, shared: Remembers) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        self.shared.kept.copy_(torch.tanh(self.shared.linear(x) + self.shared.kept))
        return self.shared.kept * 1.0


class Reads(Writes):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shared.linear(x)) + self.shared.kept


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_what_each_method_allocates_is_what_its_report_says(target: str) -> None:
    shared = Remembers()
    modules = {"write": Writes(shared).eval(), "read": Reads(shared).eval()}
    program = ethorch.compile(modules, {name: (torch.rand(1, 8),) for name in modules}, target)
    for name in modules:
        report, allocated = memory(program.pte, name), measure(program.pte, name)
        method = pte.read(program.pte).methods[name]
        kernels = max(max_lookup_use(method, HOST), kernel_temporary_bytes(method))
        assert allocated.method_pool_bytes == report.method_pool_bytes_host
        assert sum(allocated.planned) == report.arena_bytes > 0
        assert allocated.temporary_bytes == max(report.regions["scratch"], kernels)
        assert program[name].memory.ram_bytes == report.ram_bytes, "the build says the same as the file"

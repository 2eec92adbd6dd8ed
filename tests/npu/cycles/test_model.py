"""Options of the cycle model, and streams that Vela does not write."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from ethorch.npu.cycles import Effects, MemoryRate, estimate, read_regions
from ethorch.npu.cycles.model import rate_contention
from ethorch.npu.cycles.operators import read_operators
from ethorch.npu.ir import decode
from tests.npu.cycles.test_vela import compile_network, rate_regions

TARGETS = ("ethos-u55-128", "ethos-u85-256")


@pytest.fixture(params=TARGETS)
def rated(request):
    """A stream with its regions."""
    (vela,) = compile_network("ds_cnn", request.param)
    return decode(vela.stream), rate_regions(request.param)


def test_every_kernel_belongs_to_one_operator(rated):
    stream, regions = rated
    keys = [key for operator in estimate(stream, regions).operators for key in operator.keys]
    assert sorted(keys) == sorted(op.key for op in stream.ops if not op.is_dma)


def test_kernel_start_adds_cycles_to_each_kernel(rated):
    stream, regions = rated
    kernels = sum(not op.is_dma for op in stream.ops)
    plain, started = (estimate(stream, regions, effects).cycles for effects in (Effects(), Effects(kernel_start=300)))
    assert started - plain == 300 * kernels


def test_drain_adds_cycles_to_each_wait(rated):
    from ethorch.npu.ir.encode import derive_waits

    stream, regions = rated
    waits = sum(len(entry) for entry in derive_waits(stream.ops))
    plain, drained = (estimate(stream, regions, effects).cycles for effects in (Effects(), Effects(drain=10)))
    assert drained - plain == 10 * waits


def test_errors_of_vela_only_add_cycles(rated):
    stream, regions = rated
    with_errors, without = (estimate(stream, regions, Effects(overcounts=flag)) for flag in (True, False))
    assert len(with_errors.operators) == len(without.operators)
    assert without.cycles <= with_errors.cycles


def test_slower_memory_takes_longer(rated):
    stream, regions = rated
    slow = {**regions, 0: replace(regions[0], bytes_per_cycle=regions[0].bytes_per_cycle / 8)}
    assert estimate(stream, slow).cycles > estimate(stream, regions).cycles


def test_earlier_transfer_waits_less(rated):
    """A transfer of weights to an unused address, two operators earlier, as a pass of an optimizer issues it."""
    stream, regions = rated
    slow = {**regions, 0: replace(regions[0], read_latency=regions[0].read_latency + 10_000)}
    before = estimate(stream, slow).operators
    operators = read_operators(stream.ops, slow)
    number = next(n for n in range(2, len(operators)) if operators[n].slices == 1 and len(operators[n].weights) == 1)
    ops = copy.deepcopy(stream.ops)
    kernel, transfer = ops[operators[number].first], ops.pop(operators[number].weights[0].position)
    free = max(run.high for op in ops for run in op.writes if run.region >= 0) + 4096
    distance = free - transfer.values["DMA0_DST"]
    transfer.set_registers(DMA0_DST=transfer.registers["DMA0_DST"] + distance)
    kernel.set_registers(**{name: kernel.registers[name] + distance for name in ("WEIGHT_BASE", "SCALE_BASE")})
    ops.insert(operators[number - 2].first, transfer)
    after = estimate(replace(stream, ops=ops), slow).operators
    assert len(after) == len(before)
    hidden = before[number - 2].cycles  # at least the time of the operator that the transfer now overlaps with
    assert after[number].npu_cycles == max(before[number].npu_cycles - hidden, after[number].computation.cycles)
    assert [operator.cycles for operator in after[: number - 2]] == [operator.cycles for operator in before[: number - 2]]


def test_regions_of_a_system_configuration():
    memories = {"Sram": {"clock_scale": 0.5, "ports_used": 2.0, "read_latency": 32.0, "burst_length": 32.0}}
    regions = read_regions(16, memories, "Dram", "Sram", "Sram")
    assert regions[1] == regions[2] == MemoryRate("Sram", 16.0, 32, 1, 32, 2)
    assert regions[0] == MemoryRate("Dram", 16.0, 1, 1, 64)


def test_contention_depends_on_the_bandwidth_that_both_need():
    memory = MemoryRate("Dram", 12.0, read_latency=500, burst_bytes=128, max_reads=64)
    u55, u85 = (decode(compile_network("ds_cnn", target)[0].stream).npu for target in TARGETS)
    assert rate_contention(u55, {0: memory}) == 1
    assert rate_contention(u85, {0: memory}) == 0
    assert 0 < rate_contention(u85, {0: replace(memory, bytes_per_cycle=4.0)}) < 1
    assert rate_contention(u85, {0: replace(memory, read_latency=0)}) == 1

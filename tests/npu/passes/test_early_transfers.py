"""Transfers of weights that start early."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ethorch.npu.cycles import Effects, Regions, estimate
from ethorch.npu.cycles.model import _list_traffic as list_traffic
from ethorch.npu.cycles.traffic import WRITE
from ethorch.npu.ir import Op, Stream, decode, find_buffers
from ethorch.npu.ir.dataflow import Dataflow, trace_dataflow
from ethorch.npu.ir.image import Image
from ethorch.npu.passes import direct_reads, early_transfers
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.direct_reads import omit_transfers
from ethorch.npu.passes.names import PASSES
from ethorch.npu.passes.occupancy import Occupancy
from ethorch.npu.passes.pipeline import optimize
from ethorch.npu.passes.schedule import Part, Schedule
from ethorch.npu.passes.weight_transfers import Weights, find_weights, stage_weights
from ethorch.npu.verify import decode_instructions, trace_reference, verify_listing
from tests.npu.passes.streams import list_instructions, read_dram_rates, read_rates
from tests.npu.verify.simulation import extreme_orders, run
from tests.npu.verify.streams import Case, compile_case

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = [("classifier", "ethos-u55-128"), ("blocks", "ethos-u55-128"), ("attention", "ethos-u65-256")]


def optimize_case(network: str, target: str) -> tuple[Case, Stream, Stream]:
    case = compile_case(network, target)
    before = decode(case.payload, case.image)
    after = early_transfers.run(before, Context(read_rates(target)))
    assert after is not None
    return case, before, after


def is_accepted(stream: Stream, reference: Dataflow) -> bool:
    return next(verify_listing(list_instructions(stream), stream.image, reference=reference), None) is None


@pytest.mark.parametrize(("network", "target"), CASES)
def test_transfers_save_cycles_and_change_no_byte(network: str, target: str) -> None:
    case, before, after = optimize_case(network, target)
    reference = trace_reference(decode_instructions(case.payload), case.image)
    regions = read_rates(target)
    for effects in (Effects(), Effects(contention=True), Effects(kernel_start=300, contention=True)):
        assert estimate(after, regions, effects).cycles < estimate(before, regions, effects).cycles
    assert is_accepted(after, reference)
    assert after.image.sizes == before.image.sizes
    listing = list_instructions(after)
    expected = run(decode_instructions(case.payload), case.image, 0)
    assert expected is not None
    assert all(run(listing, after.image, 0, order) == expected for order in (None, *extreme_orders(listing)))


def test_the_arena_grows_up_to_its_limit() -> None:
    case = compile_case("classifier", "ethos-u55-128")
    before = decode(case.payload, case.image)
    cycles = []
    for more in (0, 32 << 10):
        context = Context(read_rates("ethos-u55-128"), {1: case.image.sizes[1] + more})
        after = early_transfers.run(before, context)
        assert after is not None and after.image.sizes[1] <= case.image.sizes[1] + more
        cycles.append(context.rate(after))
    assert cycles[1] <= cycles[0]


def read_slow_rates(target: str) -> Regions:
    """Return rates with constants that are slower than all kernels, so that transfers take several operators."""
    regions = read_rates(target)
    return {**regions, 0: replace(regions[0], bytes_per_cycle=0.25)}


def test_a_transfer_may_take_several_operators() -> None:
    """No operator leaves time for a part of the weights, but four operators together leave time for all of them."""
    case = compile_case("classifier", "ethos-u55-128")
    stream, context = decode(case.payload, case.image), Context(read_rates("ethos-u55-128"))
    schedule = Schedule(stream, context, 1, context.rate_operators(stream), {}, [])
    weights, gaps, cycles = Weights(8, 0, 1024, (0,)), range(8, 0, -1), schedule._copy_cycles(1024)
    assert schedule._divide(weights, gaps, [cycles // 4 + 1] * 9) == [Part(5, 0, 1024)]
    for idle in (0, cycles):  # directly before the operator
        assert schedule._divide(weights, gaps, [idle] * 9) == [Part(8, 0, 1024)]


def test_scales_alone_are_rated_with_the_weights_that_stay() -> None:
    """A kernel that reads its weights from flash, with scales in SRAM."""
    case = compile_case("attention", "ethos-u55-128")
    before, regions = decode(case.payload, case.image), read_rates("ethos-u55-128")
    after = early_transfers.run(before, Context(regions))
    assert after is not None
    moved = [op for op in after.ops if (op.registers.get("WEIGHT_REGION"), op.registers.get("SCALE_REGION")) == (0, 1)]
    assert moved
    flash = regions[0].name
    for op in moved:
        results = [next(each for each in estimate(stream, regions).operators if op.key in each.keys) for stream in (before, after)]
        assert results[1].access_cycles[flash] <= results[0].access_cycles[flash]
    operators = [each.operator for each in Context(regions).rate_operators(after)]
    mixed = [
        each for each in operators if each.weights and any(after.ops[n].key in {op.key for op in moved} for n in each.positions)
    ]
    assert mixed and all(each.reads_constants(regions) for each in mixed)
    written = [traffic for each in mixed for traffic in list_traffic(each, regions, 0) if traffic.channel == WRITE]
    assert written and all(traffic.memory == regions[1] for traffic in written)
    assert any(not each.reads_constants(regions) for each in operators)


def test_only_bytes_that_are_read_are_transferred() -> None:
    """A transfer of scales and weights to a kernel whose scales are elsewhere."""
    case = compile_case("classifier", "ethos-u55-128")
    stream, context = decode(case.payload, case.image), Context(read_rates("ethos-u55-128"))
    operators = [each.operator for each in context.rate_operators(stream)]
    weights = next(each for each in find_weights(stream, operators, 1) if each.transfer is not None and not each.is_slice)
    reader = stream.ops[weights.readers[0]]
    assert reader.registers["SCALE_BASE"] == weights.address < reader.registers["WEIGHT_BASE"]
    ops = [op.copy(SCALE_REGION=0, SCALE_BASE=weights.low) if op is reader else op for op in stream.ops]
    trimmed = next(each for each in find_weights(replace(stream, ops=ops), operators, 1) if each.transfer == weights.transfer)
    assert trimmed.address == reader.registers["WEIGHT_BASE"] and trimmed.low - weights.low == trimmed.address - weights.address
    assert trimmed.size_bytes == reader.registers["WEIGHT_LENGTH"]


def test_only_the_scales_are_transferred_if_weights_do_not_fit() -> None:
    case = compile_case("blocks", "ethos-u85-256")
    before, context = decode(case.payload, case.image), Context(read_dram_rates("ethos-u85-256"))
    after = early_transfers.run(before, context)
    assert after is not None and after.image.sizes == before.image.sizes
    scales = [op for op in after.ops if (op.registers.get("WEIGHT_REGION"), op.registers.get("SCALE_REGION")) == (0, 1)]
    assert scales and context.rate(after) < context.rate(before)
    reference = trace_reference(decode_instructions(case.payload), case.image)
    assert is_accepted(after, reference)
    assert run(list_instructions(after), after.image, 0) == run(decode_instructions(case.payload), case.image, 0)


def test_large_regions_of_long_streams_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    case = compile_case("classifier", "ethos-u55-128")
    stream, context = decode(case.payload, case.image), Context(read_rates("ethos-u55-128"))
    monkeypatch.setattr(direct_reads, "_MOST_OPERATORS", 0)
    for limit in ("_MOST_GRANULES", "_MOST_WORK"):
        with monkeypatch.context() as limited:
            limited.setattr(early_transfers, limit, 0)
            assert early_transfers.run(stream, context) is None
    assert early_transfers.run(stream, context) is not None


@pytest.mark.parametrize(
    ("network", "target"), [("blocks", "ethos-u55-128"), ("heads", "ethos-u65-256"), ("swapped", "ethos-u65-256")]
)
def test_kernels_read_weights_directly_if_transfers_would_delay_them(network: str, target: str) -> None:
    case, context = compile_case(network, target), Context(read_rates(target))
    before = decode(case.payload, case.image)
    region = context.find_fast_region(before)
    assert region is not None
    after = omit_transfers(before, context, region)
    assert len(after.ops) < len(before.ops) and context.rate(after) < context.rate(before)
    assert is_accepted(after, trace_reference(decode_instructions(case.payload), case.image))
    assert run(list_instructions(after), after.image, 0) == run(decode_instructions(case.payload), case.image, 0)


def test_scales_have_transfers_of_their_own() -> None:
    weights = Weights(0, 512, 4096, (0,), scale_bytes=1024)
    assert weights.divide(0, 4096) == [(0, 1024), (1024, 3072)]
    assert weights.divide(0, 512) == [(0, 512)] and weights.divide(1024, 64) == [(1024, 64)]
    assert replace(weights, scale_bytes=0).divide(0, 4096) == [(0, 4096)]


@pytest.mark.parametrize("is_divided", [False, True])
def test_scales_are_charged_to_the_memory_that_kernels_read_if_they_are_transferred_alone(is_divided: bool) -> None:
    case, context = compile_case("classifier", "ethos-u85-256"), Context(read_dram_rates("ethos-u85-256"))
    stream = decode(case.payload, case.image)
    rated = context.rate_operators(stream)
    weights = next(each for each in find_weights(stream, [one.operator for one in rated], 1) if each.scale_bytes)
    staged = stage_weights(stream, rated, [weights if is_divided else replace(weights, scale_bytes=0)], 1)
    operator = context.rate_operators(staged)[weights.operator].operator
    assert len(operator.weights) == 1 + is_divided
    assert operator.home == (None if is_divided else 0)


@pytest.mark.parametrize(("network", "target"), [*CASES[:2], pytest.param(*CASES[2], marks=pytest.mark.long)])
def test_a_transfer_before_the_memory_is_free_is_rejected(network: str, target: str) -> None:
    """Each transfer at each earlier position is rejected, or changes no byte."""
    case, _, after = optimize_case(network, target)
    reference = trace_reference(decode_instructions(case.payload), case.image)
    expected = run(decode_instructions(case.payload), case.image, 0)
    rejected = 0
    for number, op in enumerate(after.ops):
        if not op.is_dma:
            continue
        for start in {*range(0, number, 3), number - 1} - {-1}:
            ops = [*after.ops[:start], op, *after.ops[start:number], *after.ops[number + 1 :]]
            changed = replace(after, ops=ops)
            if not is_accepted(changed, reference):
                rejected += 1
                continue
            listing = list_instructions(changed)
            assert all(run(listing, case.image, 0, order) == expected for order in (None, *extreme_orders(listing)))
    assert rejected


@pytest.mark.parametrize(("network", "target"), [CASES[0], CASES[2]])
def test_a_transfer_over_a_live_buffer_is_rejected(network: str, target: str) -> None:
    """Weights at any other address are rejected, or overwrite no byte that is read."""
    case, before, after = optimize_case(network, target)
    reference = trace_reference(decode_instructions(case.payload), case.image)
    expected = run(decode_instructions(case.payload), case.image, 0)
    decoded = {op.key for op in before.ops}
    rng, rejected = np.random.default_rng(0), 0
    for number, op in enumerate(after.ops):
        if not op.is_dma or op.key in decoded:
            continue
        size = op.registers["DMA0_LEN"]
        for address in 16 * rng.integers(0, (case.image.sizes[op.writes[0].region] - size) // 16 + 1, 12):
            changed = move_weights(after, number, int(address))
            if not is_accepted(changed, reference):
                rejected += 1
                continue
            listing = list_instructions(changed)
            assert all(run(listing, case.image, 0, order) == expected for order in (None, *extreme_orders(listing)))
    assert rejected


def move_weights(stream: Stream, number: int, address: int) -> Stream:
    """Return a stream with another target of a transfer, from which its readers read."""
    ops = list(stream.ops)
    target = ops[number].writes[0]
    buffer = next(buffer for buffer in find_buffers(ops) if number in buffer.writers)
    for position in buffer.readers:
        ops[position] = ops[position].copy(**_shift(ops[position], target.low, target.high, address - target.low))
    ops[number] = ops[number].copy(DMA0_DST=address)
    return replace(stream, ops=ops)


def _shift(op: Op, low: int, high: int, step: int) -> dict[str, int]:
    runs = [run for run in op.reads if run.register.startswith(("WEIGHT", "SCALE")) and low <= run.low < high]
    return {run.register: op.registers[run.register] + step for run in runs}


def test_weights_stay_in_fast_constants() -> None:
    """Streams whose arena is not faster than the constants are kept."""
    case = compile_case("classifier", "ethos-u55-128")
    regions = read_rates("ethos-u55-128")
    context = Context({**regions, 0: regions[1]})
    assert early_transfers.run(decode(case.payload, case.image), context) is None


def test_occupancy_finds_gaps_in_space_and_time() -> None:
    case = compile_case("classifier", "ethos-u55-128")
    ops = decode(case.payload, case.image).ops
    size = case.image.sizes[1]
    occupancy = Occupancy(ops, 1, size + 64, case.image)
    assert occupancy.find([(0, len(ops) - 1, 0, 64)], 64) == size
    assert occupancy.find([(0, len(ops) - 1, 0, 80)], 80) is None
    occupancy.set(0, 0, size, size + 64, True)
    assert occupancy.find([(0, len(ops) - 1, 0, 64)], 64) is None
    assert occupancy.find([(1, len(ops) - 1, 0, 64)], 64) is not None
    assert occupancy.find([(1, len(ops) - 1, 0, 32), (1, len(ops) - 1, 32, 32)], 64) is not None


def test_unread_bytes_of_an_input_are_in_use_until_its_last_read() -> None:
    case = compile_case("classifier", "ethos-u55-128")
    ops = decode(case.payload, case.image).ops
    size = case.image.sizes[1]
    (region, low, _), *others = case.image.inputs
    occupancy = Occupancy(ops, 1, size + 128, replace(case.image, inputs=((region, low, size + 64), *others)))
    assert occupancy.find([(0, len(ops) - 1, 0, 64)], 64) == size + 64
    assert occupancy.find([(2, len(ops) - 1, 0, 64)], 64) == size  # the first two operations read the input


@pytest.mark.parametrize(("network", "target"), CASES)
def test_the_pipeline_accepts_the_result(network: str, target: str) -> None:
    case = compile_case(network, target)
    passes = frozenset(PASSES) - {"copy-elision"}  # the copies hide transfers
    result = optimize(case.payload, case.image, Context(read_rates(target), passes=passes))
    assert result is not None and not result.rejected
    assert "early-transfers" in [effect.name for effect in result.effects]


def test_memory_is_in_use_until_its_readers_end() -> None:
    """The weights of the last of four kernels are transferred to bytes that the third kernel reads."""
    golden = decode((GOLDEN / "npu_stream.bin").read_bytes())
    conv, transfer = golden.ops[:2]

    def convolve(key: int, ifm: int, ofm: int, **changes: int) -> Op:
        registers = {"IFM_DEPTH_M1": 15, "IFM_STRIDE_X": 16, "IFM_STRIDE_Y": 256, "IFM_BASE0": ifm, "OFM_BASE0": ofm}
        streams = {"WEIGHT_REGION": 0, "WEIGHT_BASE": 0xA0, "WEIGHT_LENGTH": 0x20, "SCALE_REGION": 0, "SCALE_BASE": 0}
        return replace(conv.copy(**registers, **{**streams, **changes}), key=key, before=None)

    ops = [
        convolve(4, 0x2000, 0x3000),
        convolve(8, 0x3000, 0x0000),
        convolve(12, 0x0000, 0x1000),
        replace(transfer.copy(DMA0_SRC=0x5A0, DMA0_DST=0, DMA0_LEN=0x9A0), key=16),
        convolve(20, 0x1000, 0x2000, WEIGHT_REGION=1, WEIGHT_LENGTH=0x900, SCALE_REGION=1),
    ]
    image = Image(np.zeros(0x2000, np.uint8), {1: 0x4000}, ((1, 0x2000, 0x3000),), ((1, 0x2000, 0x3000),))
    stream = Stream(golden.npu, golden.payload, ops, 0, image)
    after = early_transfers.run(stream, Context(read_slow_rates("ethos-u55-128"), {1: 0x4000}))
    dataflows = [trace_dataflow(each.ops, image.constants, image.inputs, image.outputs) for each in (stream, after or stream)]
    assert all(dataflows[1].reads[key] == read for key, read in dataflows[0].reads.items())

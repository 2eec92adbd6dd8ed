"""Copies of feature maps by DMA."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from ethorch import npu
from ethorch.npu.arrays import Ints
from ethorch.npu.cycles import estimate
from ethorch.npu.cycles.dependencies import Dependencies
from ethorch.npu.forms import Copy, Transfer
from ethorch.npu.ir import Op, Stream, decode
from ethorch.npu.ir.encode import encode
from ethorch.npu.ir.kernel_copies import find_kernel_copy
from ethorch.npu.passes import dma_copies
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.dma_copies import find_rows
from ethorch.npu.passes.pipeline import Optimized, optimize
from ethorch.npu.verify import decode_instructions, trace_reference, verify_listing
from tests.npu.passes.streams import assert_faster_and_equal, list_instructions, read_dram_rates, read_rates
from tests.npu.verify.simulation import run
from tests.npu.verify.streams import Case, compile_benchmark, compile_case

TARGETS = ["ethos-u85-128", "ethos-u85-256", "ethos-u85-2048"]


def replace_copies(network: str, target: str, passes: str = "dma-copies") -> tuple[Case, Optimized]:
    """Return a network, and its stream before and after the pass, which the verifier accepts."""
    case = compile_case(network, target)
    result = optimize(case.payload, case.image, Context(read_rates(target), passes=frozenset(passes.split(","))))
    assert result is not None and not result.rejections
    return case, result


def list_transfers(stream: Stream) -> list[Transfer]:
    return [form for op in stream.ops if isinstance(form := op.prepared.form, Transfer)]


@pytest.mark.parametrize(("network", "target"), [("swapped", target) for target in TARGETS] + [("rotary", TARGETS[1])])
def test_transfers_save_cycles_and_change_no_byte(network: str, target: str) -> None:
    case, result = replace_copies(network, target)
    before, after = result.before, result.stream
    copies = [sum(find_kernel_copy(op) is not None for op in stream.ops) for stream in (before, after)]
    assert copies[1] < copies[0] and list_transfers(after)
    assert_faster_and_equal(case, before, after, Context(read_rates(target)))


def test_a_transfer_replaces_successive_copies() -> None:
    """The pairs of a rotary embedding are interleaved by several copies."""
    _, result = replace_copies("rotary", "ethos-u85-256")
    removed = len([op for op in result.before.ops if find_kernel_copy(op)]) - len(
        [op for op in result.stream.ops if find_kernel_copy(op)]
    )
    replaced = {op.origin for op in result.stream.ops if isinstance(op.prepared.form, Transfer | Copy) and op.key < 0}
    assert len(replaced) < removed


def test_sources_with_longer_lifetimes_are_not_overwritten() -> None:
    """Transfers read the two halves of an embedding, which separate operators write, later than the copies that they replace."""
    (case,) = compile_benchmark("llama", "ethos-u85-256")
    context = Context(read_dram_rates("ethos-u85-256"), passes=frozenset({"copy-elision", "dma-copies"}))
    result = optimize(case.payload, case.image, context)
    assert result is not None and not result.rejections and list_transfers(result.stream)


def test_kernels_that_copy_a_map_onto_itself_remain() -> None:
    case = compile_case("swapped", "ethos-u85-256")
    stream = decode(case.payload, case.image)
    position, op = next((n, op) for n, op in enumerate(stream.ops) if find_kernel_copy(op))
    names = ("BASE0", "REGION", "STRIDE_X", "STRIDE_Y", "STRIDE_C")
    ops = list(stream.ops)
    ops[position] = op.copy(**{f"OFM_{name}": op.registers[f"IFM_{name}"] for name in names})
    after = dma_copies.run(replace(stream, ops=ops), Context(read_rates("ethos-u85-256")))
    assert after is None or op.key in [other.key for other in after.ops]


def test_transfers_to_unread_parts_are_omitted() -> None:
    """The host reads only the first of two heads."""
    case = compile_case("rotary", "ethos-u85-256")
    stream = decode(case.payload, case.image)
    ((region, low, high),) = stream.image.outputs
    image = replace(stream.image, outputs=((region, low, (low + high) // 2),))
    context = Context(read_rates("ethos-u85-256"))
    whole, half = (dma_copies.run(replace(stream, image=each), context) for each in (stream.image, image))
    assert whole is not None and half is not None
    assert 0 < len(list_transfers(half)) < len(list_transfers(whole))
    assert not list(verify_listing(list_instructions(half), half.image))


def test_unwritten_bytes_remain_unwritten_in_a_copy() -> None:
    _, result = replace_copies("swapped", "ethos-u85-256")
    stream = result.stream
    position, op = next((n, op) for n, op in enumerate(stream.ops) if isinstance(op.prepared.form, Transfer) and op.key < 0)
    end = sum(stream.image.sizes.values())
    image = replace(stream.image, sizes=dict.fromkeys(stream.image.sizes, 3 * end))
    ops = list(stream.ops)
    ops[position] = op.copy(DMA0_SRC=2 * end)
    rejections = verify_listing(list_instructions(replace(stream, ops=ops, image=image)), image)
    assert {rejection.rule for rejection in rejections} & {"unwritten", "output"}


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512"])
def test_other_npus_have_no_strided_transfers(target: str) -> None:
    case = compile_case("heads", target)
    assert dma_copies.run(decode(case.payload, case.image), Context(read_rates(target))) is None


def move(parts: list[dma_copies._Rows], memory: Ints, size_bytes: int) -> Ints:
    """Copy rows, byte by byte."""
    result = np.full(size_bytes, -1)
    for part in parts:
        for index in itertools.product(*(range(count) for count, _, _ in part.loops)):
            source = part.source + sum(n * loop[1] for n, loop in zip(index, part.loops, strict=True))
            target = part.target + sum(n * loop[2] for n, loop in zip(index, part.loops, strict=True))
            result[target : target + part.length] = memory[source : source + part.length]
    return result


@pytest.mark.parametrize("seed", range(60))
def test_rows_copy_each_element_of_a_permutation(seed: int) -> None:
    numbers = random.Random(seed)
    shape = [numbers.randrange(1, 5) for _ in range(numbers.randrange(2, 6))]
    perm = numbers.sample(range(len(shape)), len(shape))
    item = numbers.choice((1, 2, 4))
    padding = numbers.choice((0, item, 16 * item))  # after each innermost row of the target
    sources = np.arange(np.prod(shape)).reshape(shape).transpose(perm) * item + 8
    row = sources.shape[-1] * item + padding
    targets = (np.arange(sources[..., 0].size)[:, None] * row + np.arange(sources.shape[-1]) * item).reshape(sources.shape)
    memory = np.arange(8 + item * sources.size)
    parts = find_rows(sources, targets, item)
    moved = move(parts, memory, int(targets.max()) + item)
    expected = np.full_like(moved, -1)
    for byte in range(item):
        expected[targets + byte] = memory[sources + byte]
    assert parts and np.array_equal(moved, expected)


def test_irregular_addresses_have_no_rows() -> None:
    targets = np.arange(12)
    assert find_rows(np.array([0, 4, 1, 5, 9, 2, 3, 6, 7, 8, 10, 11]), targets, 1) == []
    assert find_rows(targets[::-1].copy(), targets, 1) == []  # a transfer cannot reverse


def test_rows_occupy_whole_bursts() -> None:
    """1,024 rows of 1 byte take as long as 1,024 bursts of 64 bytes."""
    _, result = replace_copies("rotary", "ethos-u85-256")
    stream, regions = result.stream, read_rates("ethos-u85-256")
    op = next(op for op in stream.ops if isinstance(op.prepared.form, Transfer))

    def rate(length: int, count: int) -> int:
        changed = op.copy(DMA0_LEN=length, DMA0_SIZE0=count, DMA0_SIZE1=1, DMA0_SRC_STRIDE0=length, DMA0_DST_STRIDE0=2 * length)
        return estimate(replace(stream, ops=[changed]), regions).cycles

    burst = regions[op.registers["DMA0_DST_REGION"]].burst_bytes
    assert rate(1, 1024) == rate(burst, 1024) > rate(burst, 16) == rate(1, 16)


def test_the_verifier_follows_strided_transfers() -> None:
    case, result = replace_copies("rotary", "ethos-u85-256")
    reference = trace_reference(decode_instructions(case.payload), case.image)
    stream = result.stream
    assert not list(verify_listing(list_instructions(stream), stream.image, reference=reference))
    changes = ({"DMA0_SRC": 1}, {"DMA0_SRC_STRIDE0": 1}, {"DMA0_DST_STRIDE0": 1}, {"DMA0_SIZE0": -1})
    for position, change in itertools.product([n for n, op in enumerate(stream.ops) if op.key < 0 and op.is_dma], changes):
        (name, step), op = *change.items(), stream.ops[position]
        if op.registers["DMA0_SRC_REGION"] >> 9 == 0 and name.endswith("0"):
            continue  # without loops, strides and sizes have no effect
        ops = list(stream.ops)
        ops[position] = op.copy(**{name: op.registers[name] + step})
        changed = replace(stream, ops=ops)
        assert any(verify_listing(list_instructions(changed), changed.image, reference=reference)), change


def test_readers_of_a_source_that_is_overwritten_compute_the_same() -> None:
    """After each copy, an operation writes other values to the copy's source."""
    case = compile_case("rotary", "ethos-u85-256")
    before = decode(case.payload, case.image)
    count = 0
    for position, op in enumerate(before.ops):
        copy = find_kernel_copy(op)
        writers = [w for w in before.ops[:position] if copy and any(run.low == copy.source.bases[0] for run in w.writes)]
        if not writers or writers[-1].is_dma:
            continue
        other = replace(writers[-1].copy(OFM_ZERO_POINT=3), key=before.new_key(), before=None)
        ops: list[Op] = [*before.ops[: position + 1], other, *before.ops[position + 1 :]]
        changed = replace(before, ops=[replace(op, before=None) for op in ops])
        after = dma_copies.run(changed, Context(read_rates("ethos-u85-256")))
        if after is not None:
            assert run(list_instructions(after), after.image, 0) == run(list_instructions(changed), changed.image, 0)
            count += 1
    assert count


@pytest.mark.parametrize("offset", [0, 16])
def test_a_strided_transfer_onto_its_source_is_rejected(offset: int) -> None:
    _, result = replace_copies("swapped", "ethos-u85-256")
    stream = result.stream
    position, op = next((n, op) for n, op in enumerate(stream.ops) if isinstance(op.prepared.form, Transfer) and op.key < 0)
    ops = list(stream.ops)
    ops[position] = op.copy(DMA0_DST_REGION=op.registers["DMA0_SRC_REGION"] & 7, DMA0_DST=op.registers["DMA0_SRC"] + offset)
    rejections = verify_listing(list_instructions(replace(stream, ops=ops)), stream.image)
    assert any(rejection.rule == "overlap" and rejection.register == "DMA0_DST" for rejection in rejections)


def test_a_transfer_between_the_rows_of_its_source_is_accepted() -> None:
    """The rows of the source are 2 bytes long and 32 bytes apart."""
    _, result = replace_copies("swapped", "ethos-u85-256")
    stream = result.stream
    op = next(op for op in stream.ops if isinstance(op.prepared.form, Transfer))
    region = op.registers["DMA0_SRC_REGION"] & 7
    rows = {"DMA0_LEN": 2, "DMA0_SIZE0": 2, "DMA0_SIZE1": 1, "DMA0_SRC": 0, "DMA0_SRC_STRIDE0": 32, "DMA0_DST_STRIDE0": 4}
    for target, is_rejected in ((2, False), (16, False), (26, False), (27, True), (0, True), (31, True)):
        changed = replace(stream, ops=[op.copy(**rows, DMA0_DST_REGION=region, DMA0_DST=target)])
        rejections = verify_listing(list_instructions(changed), stream.image)
        assert any("outside the source" in str(rejection) for rejection in rejections) == is_rejected, target


def test_a_read_depends_on_each_transfer_between_whose_rows_it_reads() -> None:
    """Two transfers write the even and the odd bytes of a map."""
    _, result = replace_copies("rotary", "ethos-u85-256")
    ops = [op for op in result.stream.ops if isinstance(op.prepared.form, Transfer)]
    reader = ops[-1].copy(DMA0_SRC=ops[-1].writes[0].low, DMA0_DST=1 << 20)
    links = Dependencies([*ops, replace(reader, key=-1000)]).links[-1]
    low, high = ops[-1].writes[0].low, ops[-1].writes[0].high
    writers = {n for n, op in enumerate(ops) if op.writes[0].low < high and low < op.writes[0].high}
    assert {writer for _, writer in links} == writers and len(writers) > 1


def test_staging_memory_ends_where_transfers_end() -> None:
    _, result = replace_copies("rotary", "ethos-u85-256")
    stream = result.stream
    position, op = next((n, op) for n, op in enumerate(stream.ops) if isinstance(op.prepared.form, Transfer) and op.key < 0)
    ops = [
        replace(op.copy(DMA0_DST_REGION=2, DMA0_DST=4096), key=stream.new_key()) if n == position else other
        for n, other in enumerate(stream.ops)
    ]
    program = npu.Program(encode(replace(stream, ops=ops)), b"")
    (end,) = (run.high for run in ops[position].writes)
    assert npu.staging_bytes(program) == -(-end // 16) * 16

"""Allocation of buffers: sizes, dataflow, and bytes for random memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ethorch.npu import Machine, Program
from ethorch.npu.ir import Stream, decode
from ethorch.npu.ir.encode import derive_waits, encode
from ethorch.npu.ir.image import Image
from ethorch.npu.passes import allocation, division
from ethorch.npu.passes.accesses import Block, CoarseLabels
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.lifetimes import find_lifetimes
from ethorch.npu.passes.packing import bound_size, pack
from ethorch.npu.passes.placement import separate
from ethorch.npu.passes.reorder import WindowSearch
from ethorch.npu.passes.segments import Permit, Piece, Segment
from ethorch.npu.passes.tiling import Tiler
from ethorch.npu.verify import decode_instructions, trace_reference, verify, verify_listing
from ethorch.support.errors import MachineFault
from tests.npu.passes.streams import compile_long_attention, list_instructions, read_rates
from tests.npu.verify.streams import Case, benchmark_cases, compile_benchmark, compile_case

LONG = pytest.mark.long
MODES = ("Sram_Only", "Shared_Sram", "Dedicated_Sram")
CASES = [
    ("blocks", "ethos-u55-128"),
    ("attention", "ethos-u55-128"),
    ("attention", "ethos-u65-512"),
    ("attention", "ethos-u85-256"),
]


def simulate(payload: bytes, image: Image, seed: int, as_indices: bool = False, checks: tuple[str, ...] = ()) -> list[bytes]:
    """Return the outputs. All other memory contains random bytes, which depend on its size."""
    numbers = np.random.default_rng(seed)
    inputs = [numbers.integers(0, 8 if as_indices else 256, high - low, np.uint8) for _, low, high in image.inputs]
    if as_indices:
        inputs = [np.where(np.arange(data.size) % 4 == 0, data, 0).astype(np.uint8) for data in inputs]
    regions = {number: numbers.integers(0, 256, size, np.uint8) for number, size in image.sizes.items() if size}
    machine = Machine(Program(payload, image.constants), regions=regions, checks=checks)
    for (region, low, high), data in zip(image.inputs, inputs, strict=True):
        regions[region][low:high] = data
    machine.run()
    return [regions[region][low:high].tobytes() for region, low, high in image.outputs]


def assert_equal(case: Case, after: Stream, as_indices: bool = False) -> None:
    """Check that a stream is accepted and computes the bytes of a case."""
    payload = encode(after)
    assert not verify(payload, after.image)
    for seed in (1, 2):
        expected = simulate(case.payload, case.image, seed, as_indices)
        assert simulate(payload, after.image, seed, as_indices, checks=("overlap",)) == expected


# Packing ----------------------------------------------------------------------------------------------------------------


def segment(size: int, start: int, end: int, at: int = 0) -> Segment:
    return Segment(1, at, at + size, (Piece(at, at + size, start, end),))


def find_overlaps(segments: list[Segment], moves: tuple[int, ...]) -> list[tuple[int, int]]:
    placed = [
        (n, p.low + move, p.high + move, p.start, p.end)
        for n, (each, move) in enumerate(zip(segments, moves, strict=True))
        for p in each.pieces
    ]
    return [
        (a[0], b[0])
        for a in placed
        for b in placed
        if a[0] < b[0] and a[1] < b[2] and b[1] < a[2] and a[3] <= b[4] and b[3] <= a[4]
    ]


def test_items_that_are_in_use_together_do_not_overlap() -> None:
    numbers = np.random.default_rng(0)
    starts = numbers.integers(0, 40, 60)
    segments, at = [], 0
    for start in starts:
        size = 16 * int(numbers.integers(1, 40))
        segments.append(segment(size, int(start), int(start + numbers.integers(0, 12)), at))
        at += size
    packing = pack(segments, [])
    assert not find_overlaps(segments, packing.moves)
    assert packing.bound <= packing.size_bytes <= 1.1 * packing.bound
    assert pack(segments, []) == packing


def test_an_item_uses_gaps_of_another_one() -> None:
    outer = Segment(1, 0, 96, (Piece(0, 32, 0, 9), Piece(64, 96, 0, 9)))
    packing = pack([outer, segment(32, 2, 3, at=96)], [])
    assert packing.size_bytes == packing.bound == 96


def test_each_tile_has_its_own_register() -> None:
    """Also if an unused register contains the same address, as for a rolling buffer at the start of the arena."""
    ops = decode(compile_case("blocks", "ethos-u55-128").payload).ops
    op = next(op for op in ops if op.name == "NPU_OP_CONV" and op.registers["OFM_HEIGHT_M1"] > 3)
    tiled = op.copy(OFM_HEIGHT0_M1=1, OFM_BASE1=0, OFM_BASE2=0)
    assert [run.register for run in tiled.writes] == ["OFM_BASE0", "OFM_BASE2"]


def test_labels_are_as_coarse_as_the_accesses() -> None:
    memory = CoarseLabels([(1, 64, 4160), (1, 4160, 4176), (2, 0, 1 << 40)])
    for number, block in enumerate(
        (Block(64, (1024,), (1,)), Block(1088, (2, 512), (1024, 1)), Block(1600, (2, 512), (1024, 1))), 1
    ):
        for view in memory.views(1, [block]):
            view[...] = number
    assert [view.tolist() for view in memory.views(1, [Block(64, (4096,), (1,))])] == [[1, 1, 2, 3, 2, 3, 0, 0]]
    assert memory.views(1, [Block(4160, (16,), (1,))])[0].tolist() == [0]
    assert memory.views(2, [Block(0, (1 << 40,), (1,))])[0].tolist() == [0]
    assert memory.views(1, [Block(65, (3,), (1,))])[0].tolist() == [1, 1, 1]
    with pytest.raises(MachineFault, match="exceeds"):
        memory.views(1, [Block(4160, (2, 16), (16, 1))])
    with pytest.raises(MachineFault, match="has no bytes"):  # e.g. a gather whose number of rows exceeds 16 bits
        memory.views(1, [Block(64, (0, 16), (16, 1))])
    memory.clear()
    assert not memory.views(1, [Block(64, (4096,), (1,))])[0].any()


def test_a_permit_allows_one_address() -> None:
    segments = [segment(64, 0, 4), segment(64, 4, 8, at=64)]
    assert pack(segments, []).size_bytes == 128
    permit = Permit(0, 1, 4, -64)
    packing = pack(segments, [permit])
    assert packing.size_bytes == bound_size(segments, [permit]) == 64
    assert packing.moves == (0, -64)


# Streams ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "target"), CASES)
@pytest.mark.parametrize("divide", [False, True])
def test_moved_buffers_keep_dataflow_and_bytes(network: str, target: str, divide: bool) -> None:
    case = compile_case(network, target)
    before = decode(case.payload, case.image)
    result = allocation.allocate(before, divide=divide)
    after = result.stream
    assert allocation.count_bytes(after) <= allocation.count_bytes(before)
    assert all(after.image.sizes[region] >= bound for region, bound in result.bounds.items())
    listing = list_instructions(after)
    assert all(simulate(encode(after), after.image, seed) == simulate(case.payload, case.image, seed) for seed in (1, 2))
    if not divide:
        reference = trace_reference(decode_instructions(case.payload), case.image)
        assert not list(verify_listing(listing, after.image, reference=reference))


@pytest.mark.parametrize(("network", "target"), CASES)
def test_moved_buffers_require_no_further_waits(network: str, target: str) -> None:
    before = decode(compile_case(network, target).payload, compile_case(network, target).image)
    after = allocation.allocate(before).stream
    for old, new in zip(derive_waits(before.ops), derive_waits(after.ops), strict=True):
        assert all(any(wait.is_dma == other.is_dma and other.count <= wait.count for other in old) for wait in new)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_separate_buffers_share_no_bytes(target: str) -> None:
    case = compile_case("attention", target)
    separation = separate(decode(case.payload, case.image))
    apart, lifetimes = separation.stream, separation.lifetimes
    ranges = sorted((each.region, each.low, each.high) for each in lifetimes.segments)
    assert all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(ranges))
    assert simulate(encode(apart), apart.image, 1) == simulate(case.payload, case.image, 1)


@pytest.mark.parametrize("target", ["ethos-u85-256", *(pytest.param(f"ethos-{npu}", marks=LONG) for npu in ("u55-128", "u65-512"))])
def test_attention_part_by_part_needs_less_memory(target: str) -> None:
    case = compile_long_attention(target)
    before = decode(case.payload, case.image)
    separation = separate(before)
    apart, lifetimes = separation.stream, separation.lifetimes
    sizes = {region: size for region, size in apart.image.sizes.items() if size}
    search = WindowSearch(apart.ops, lifetimes, sizes, before.new_key(), lambda ops: 0, lambda ops: ops, 0, 2_000)
    after = allocation.allocate(division.apply_windows(apart, search.run())).stream
    assert allocation.count_bytes(after) < 0.75 * allocation.count_bytes(before)
    assert_equal(case, after)


def optimize(stream: Stream, context: Context) -> Stream | None:
    """Run both passes."""
    moved = allocation.run(stream, context)
    return division.run(moved or stream, context) or moved


def test_the_passes_add_hardly_any_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "LEAST_BYTES", 0)
    case = compile_long_attention("ethos-u85-256")
    before = decode(case.payload, case.image)
    context = Context(read_rates("ethos-u85-256"))
    after = optimize(before, context)
    assert after is not None
    assert allocation.count_bytes(after) < allocation.count_bytes(before)
    assert context.rate(after) <= (1 + division.TOLERANCE) * context.rate(before)
    assert_equal(case, after)
    assert encode(before) == encode(decode(case.payload, case.image)), "the argument is not modified"


def test_parts_do_not_reuse_bytes_in_another_layout() -> None:
    case = compile_long_attention("ethos-u85-256")
    separation = separate(decode(case.payload, case.image))
    apart, lifetimes = separation.stream, separation.lifetimes
    tiler = Tiler(apart.ops, {region: size for region, size in apart.image.sizes.items() if size}, lifetimes.segments, -1)
    reader = next(op for op in apart.ops if op.name == "NPU_OP_CONV" and op.registers["IFM_REGION"])
    place = {"OFM_REGION": reader.registers["IFM_REGION"], "OFM_BASE0": reader.registers["IFM_BASE0"]}
    strides = {f"OFM_STRIDE_{axis}": reader.registers[f"IFM_STRIDE_{axis}"] for axis in "XYC"}
    same, other = reader.copy(**place, **strides), reader.copy(**place, **{name: 2 * raw for name, raw in strides.items()})
    same.key, other.key = -1, -2
    assert not tiler.reuses_bytes([(reader, True), (same, True)])
    assert tiler.reuses_bytes([(reader, True), (other, False)]) and tiler.reuses_bytes([(reader, False), (other, True)])
    assert not tiler.reuses_bytes([(other, True), (reader, True)]) and not tiler.reuses_bytes([(reader, False), (other, False)])


def test_values_end_with_their_last_read() -> None:
    case = compile_case("blocks", "ethos-u55-128")
    stream = decode(case.payload, case.image)
    lifetimes = find_lifetimes(stream.ops, case.image.sizes, case.image.inputs, case.image.outputs)
    assert {piece.start for n in lifetimes.inputs for piece in lifetimes.segments[n].pieces} == {-1}
    assert {max(piece.end for piece in lifetimes.segments[n].pieces) for n in lifetimes.outputs} == {lifetimes.end}
    without = find_lifetimes(stream.ops, case.image.sizes, case.image.inputs, ())
    assert all(piece.end < lifetimes.end for each in without.segments for piece in each.pieces)


# Networks ---------------------------------------------------------------------------------------------------------------


def assert_network(case: Case, regions: Context) -> None:
    before = decode(case.payload, case.image)
    after = optimize(before, regions)
    if after is not None:
        assert allocation.count_bytes(after) < allocation.count_bytes(before)
        assert regions.rate(after) <= (1 + division.TOLERANCE) * regions.rate(before)
        as_indices = case.name.startswith(("bert", "llama"))
        assert_equal(case, after, as_indices)


@pytest.mark.long
@pytest.mark.parametrize(("name", "target"), list(benchmark_cases()))
def test_networks_compute_equal_bytes(name: str, target: str) -> None:
    for case in compile_benchmark(name, target):
        assert_network(case, Context(read_rates(target)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "memory_mode"),
    [
        *((target, mode) for target in ("ethos-u55-128", "ethos-u55-64") for mode in ("Sram_Only", "Shared_Sram")),
        *((target, mode) for target in ("ethos-u65-512", "ethos-u85-256") for mode in MODES),
    ],
)
def test_memory_modes(target: str, memory_mode: str) -> None:
    case = compile_long_attention(target, memory_mode=memory_mode)
    assert_network(replace(case, name="attention"), Context(read_rates(target)))

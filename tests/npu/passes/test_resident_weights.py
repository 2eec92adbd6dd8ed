"""Weights that a stream reads several times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ethorch.npu.cycles import estimate
from ethorch.npu.ir import Stream, decode
from ethorch.npu.ir.encode import encode
from ethorch.npu.passes import early_transfers, resident_weights
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import optimize
from ethorch.npu.passes.weight_transfers import Weights
from ethorch.npu.verify import decode_instructions, trace_reference, verify_listing
from ethorch.targets.compile_spec import RESIDENT_BYTES
from tests.npu.passes.streams import list_instructions, read_dram_rates, read_rates
from tests.npu.verify.simulation import extreme_orders, run
from tests.npu.verify.streams import Case, compile_case

TARGETS = ["ethos-u55-32", "ethos-u55-128", "ethos-u65-512", "ethos-u85-256"]


def find_context(target: str, resident_bytes: int = RESIDENT_BYTES) -> Context:
    """Return a context in which constants are as slow as the flash of a U55 system."""
    regions = read_rates(target)
    regions = {**regions, 0: replace(regions[0], bytes_per_cycle=1.0)}
    return Context(regions, passes=frozenset({"resident-weights"}), resident_bytes=resident_bytes)


def make_resident(target: str, **settings: int) -> tuple[Case, Stream, Stream | None]:
    case = compile_case("steps", target)
    before = decode(case.payload, case.image)
    return case, before, resident_weights.run(before, find_context(target, **settings))


@pytest.mark.parametrize("target", [pytest.param(x, marks=[pytest.mark.long] * (x not in TARGETS[1::2])) for x in TARGETS])
def test_copies_save_cycles_and_change_no_byte(target: str) -> None:
    case, before, after = make_resident(target)
    assert after is not None
    context = find_context(target)
    assert context.rate(after) < 0.8 * context.rate(before)
    assert context.rate(decode(encode(after), after.image)) == context.rate(after)
    reference = trace_reference(decode_instructions(case.payload), case.image)
    assert next(verify_listing(list_instructions(after), after.image, reference=reference), None) is None
    listing = list_instructions(after)
    expected = run(decode_instructions(case.payload), case.image, 0)
    assert expected is not None
    assert all(run(listing, after.image, 0, order) == expected for order in (None, *extreme_orders(listing)))


def test_the_arena_grows_by_the_copies_only() -> None:
    _, before, after = make_resident("ethos-u55-128")
    assert after is not None
    grown = after.image.sizes[1] - before.image.sizes[1]
    assert 0 < grown <= 48 * 48 * 3 * 1.2 + 16
    assert [op.is_dma for op in after.ops[: len(after.ops) - len(before.ops)]] == [True]
    _, _, same = make_resident("ethos-u55-128", resident_bytes=grown)
    assert same is not None and [op.registers for op in same.ops] == [op.registers for op in after.ops]
    _, _, less = make_resident("ethos-u55-128", resident_bytes=grown - 32)
    assert less is None
    _, _, none = make_resident("ethos-u55-128", resident_bytes=0)
    assert none is None


def test_copied_scales_stay_if_weights_are_copied() -> None:
    """Scales in the arena, at an address that is also among those of the weights in the constants."""
    _, before, _ = make_resident("ethos-u55-128")
    op = next(op for op in before.ops if op.registers.get("WEIGHT_LENGTH"))
    weights = next(run for run in op.reads if run.register == "WEIGHT_BASE")
    op = op.copy(SCALE_REGION=1, SCALE_BASE=16)
    moved = Weights(0, weights.low, weights.high - weights.low, (0,)).relocate(op, 1, 4096)
    assert moved.registers["WEIGHT_BASE"] == 4096 and moved.registers["SCALE_BASE"] == 16


def test_ranges_that_do_not_fit_take_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    _, before, after = make_resident("ethos-u55-128")
    assert after is not None
    monkeypatch.setattr(resident_weights, "_MOST_TRIALS", 1)
    context = find_context("ethos-u55-128")
    users = resident_weights.find_streams(before, [rated.operator for rated in context.rate_operators(before)], 1)
    large = [replace(each, size_bytes=RESIDENT_BYTES + 16) for each in users[:1] * 1000]
    monkeypatch.setattr(resident_weights, "find_streams", lambda *arguments: [*large, *users])
    same = resident_weights.run(before, context)
    assert same is not None and context.rate(same) == context.rate(after)


def test_weights_that_are_read_once_stay() -> None:
    case = compile_case("classifier", "ethos-u55-128")
    before = decode(case.payload, case.image)
    assert resident_weights.run(before, find_context("ethos-u55-128")) is None


def test_weights_in_sram_stay() -> None:
    case = compile_case("steps", "ethos-u55-128")
    context = find_context("ethos-u55-128")
    context = replace(context, regions={**context.regions, 0: context.regions[1]})
    assert resident_weights.run(decode(case.payload, case.image), context) is None


def test_transferred_weights_are_transferred_once() -> None:
    """A stream whose weights are already transferred before each use."""
    case, _, after = make_resident("ethos-u55-128")
    assert after is not None
    first, *others = after.ops
    repeated = []
    for op in others:
        reads_copy = any(run.low < first.writes[0].high and first.writes[0].low < run.high for run in op.reads if run.region == 1)
        repeated += [replace(first, key=after.new_key() - len(repeated), origin=op.key), op] if reads_copy else [op]
    assert len(repeated) > len(others) + 2
    stream = replace(after, ops=repeated)
    context = find_context("ethos-u55-128")
    once = resident_weights.run(stream, context)
    assert once is not None and len(once.ops) == len(after.ops)
    expected = run(decode_instructions(case.payload), case.image, 0)
    assert run(list_instructions(once), once.image, 0) == expected
    assert optimize(case.payload, case.image, context) is not None


def test_scales_are_transferred_before_their_readers() -> None:
    """Each step has scales of its own. They are transferred to two buffers in turn, if reading them from DRAM takes long."""
    case = compile_case("steps", "ethos-u85-256")
    before, context = decode(case.payload, case.image), Context(read_dram_rates("ethos-u85-256"), resident_bytes=RESIDENT_BYTES)
    after = resident_weights.run(before, context)
    assert after is not None and context.rate(after) < 0.8 * context.rate(before)
    readers = [op for op in after.ops if op.registers.get("WEIGHT_REGION") == 1]
    assert len(readers) >= 7 and all(op.registers["SCALE_REGION"] == 1 for op in readers)
    assert len({op.registers["SCALE_BASE"] for op in readers}) == 2
    positions = {op.key: n for n, op in enumerate(after.ops)}
    for op in readers:
        scales = next(run for run in op.reads if run.register == "SCALE_BASE")
        writers = [other for other in after.ops[: positions[op.key]] if other.is_dma and other.writes[0].low == scales.low]
        assert writers and writers[-1].reads[0].region == 0
    reference = trace_reference(decode_instructions(case.payload), case.image)
    assert next(verify_listing(list_instructions(after), after.image, reference=reference), None) is None
    listing = list_instructions(after)
    expected = run(decode_instructions(case.payload), case.image, 0)
    assert all(run(listing, after.image, 0, order) == expected for order in (None, *extreme_orders(listing)))
    early = early_transfers.run(after, context)
    assert early is not None and context.rate(early) < context.rate(after)
    assert next(verify_listing(list_instructions(early), early.image, reference=reference), None) is None
    assert run(list_instructions(early), early.image, 0) == expected


def test_scales_in_fast_memory_are_rated_as_such() -> None:
    """The scales of a kernel that reads its weights from DRAM."""
    case = compile_case("steps", "ethos-u85-256")
    stream, regions = decode(case.payload, case.image), read_dram_rates("ethos-u85-256")
    position = next(
        n for n, op in enumerate(stream.ops) if op.registers.get("WEIGHT_LENGTH") and op.registers["WEIGHT_REGION"] == 0
    )
    op = stream.ops[position]
    moved = replace(stream, ops=[op.copy(SCALE_REGION=1, SCALE_BASE=0) if n == position else op for n, op in enumerate(stream.ops)])
    plain, fast = (next(e for e in estimate(s, regions).operators if op.key in e.keys) for s in (stream, moved))
    assert fast.computation.cycles < plain.computation.cycles and fast.cycles < plain.cycles

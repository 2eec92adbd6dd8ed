"""Operations that run part by part."""

from __future__ import annotations

import pytest

from ethorch.npu.ir import decode
from ethorch.npu.memory import INTERNAL
from ethorch.npu.passes import allocation, division
from ethorch.npu.passes.accesses import CoarseLabels
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.placement import separate
from ethorch.npu.passes.reorder import Window
from ethorch.npu.passes.tiling import Tiler
from ethorch.support.errors import MachineFault
from tests.helpers.random_networks import network
from tests.helpers.random_networks.runs import Subject, cases, check
from tests.npu.passes.streams import compile_long_attention, read_rates
from tests.npu.verify.streams import compile_case


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_attention_over_256_tokens_fits_in_200_kib(target: str) -> None:
    """The scores of all heads have 256 KiB."""
    image = compile_long_attention(target, 256, 32, stream="optimized").image
    assert sum(image.sizes.values()) < 200 << 10


def test_cycles_are_not_added_for_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("LEAST_BYTES", 0), ("TOLERANCE", 0.2), ("_PRICE", 1)):
        monkeypatch.setattr(division, name, number)
    case = compile_long_attention("ethos-u85-256", stream="allocation")
    before = decode(case.payload, case.image)
    context = Context(read_rates("ethos-u85-256"), passes=frozenset(["division"]))
    after = division.run(before, context)
    assert after is not None
    saved = 1 - allocation.count_bytes(after) / allocation.count_bytes(before)
    added = context.rate(after) / context.rate(before) - 1
    assert 0 < added <= saved
    monkeypatch.setattr(division, "_PRICE", added / saved / 2)
    cheaper = division.run(before, context)
    assert cheaper is None or context.rate(cheaper) < context.rate(after)


def test_windows_include_the_transfers_of_tables() -> None:
    case = compile_long_attention("ethos-u55-128")
    separation = separate(decode(case.payload, case.image))
    tiler = Tiler(separation.stream.ops, separation.stream.image.allocated, separation.lifetimes.segments, -1)
    loaded: dict[tuple[int, int], int] = {}  # unit of the latest transfer of each table
    readers = 0
    for number, unit in enumerate(tiler.units):
        needed = [loaded[run.low, run.high] for op in unit.ops for run in op.reads if run.region == INTERNAL]
        assert tiler.include_tables(number, number + 1) == min([number, *needed])
        readers += bool(needed)
        loaded |= {(run.low, run.high): number for op in unit.ops for run in op.writes if run.region == INTERNAL}
    assert readers >= 2


def test_blockdep_is_derived_for_windows_and_the_next_kernel() -> None:
    """The blocks of kernels in windows may differ from those for which BLOCKDEP was chosen."""
    case = compile_case("blocks", "ethos-u55-128")
    stream = separate(decode(case.payload, case.image)).stream
    tiler = Tiler(stream.ops, stream.image.allocated, (), -1)
    kernels = [number for number, unit in enumerate(tiler.units) if not unit.ops[0].is_dma]
    first, last = kernels[1], kernels[2]
    inside = [op for unit in tiler.units[first : last + 1] for op in unit.ops]
    after = division.apply_windows(stream, [Window(first, last + 1, (tuple(inside),))])
    derived = [op.key for op in after.ops if not op.is_dma and op.before is None]
    assert derived == [tiler.units[number].ops[0].key for number in kernels[1:4]]
    assert [op.key for op in after.ops] == [op.key for op in stream.ops]


def test_buffers_that_share_bytes_at_different_times_are_separated() -> None:
    """The strided parts of a transposed map enclose the bytes of earlier values."""
    assert check(Subject(network(10730)), cases(10730, 4)[2]) == "equal"
    with pytest.raises(MachineFault, match="share bytes"):
        CoarseLabels([(1, 0, 64), (1, 32, 48)])

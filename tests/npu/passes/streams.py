"""Encoded streams, and memory rates of targets."""

from __future__ import annotations

from ethorch.npu.cycles import Regions
from ethorch.npu.ir import Stream, decode
from ethorch.npu.ir.encode import encode, encode_with_offsets
from ethorch.npu.passes.context import Context
from ethorch.npu.verify import Listing, decode_instructions
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates
from tests.npu.verify.simulation import extreme_orders, run
from tests.npu.verify.streams import Case


def read_rates(target: str) -> Regions:
    return read_memory_rates(EthosUCompileSpec(target))


def read_dram_rates(target: str) -> Regions:
    """Return rates with the constants in DRAM and the other regions in SRAM."""
    rates = read_memory_rates(EthosUCompileSpec(target, "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram"))
    return {**rates, 1: rates[2]}


def assert_faster_and_equal(case: Case, before: Stream, after: Stream, context: Context) -> None:
    """Check that a changed stream has fewer cycles, no larger regions, and equal outputs, even if transfers run early or late."""
    assert context.rate(after) < context.rate(before)
    assert all(after.image.sizes[region] <= size for region, size in before.image.sizes.items())
    assert context.rate(decode(encode(after), after.image)) == context.rate(after)
    listing = list_instructions(after)
    expected = run(decode_instructions(case.payload), case.image, 0)
    assert expected is not None
    assert all(run(listing, after.image, 0, order) == expected for order in (None, *extreme_orders(listing)))


def list_instructions(stream: Stream) -> Listing:
    """Return the encoded operations with the keys of the stream."""
    encoded = encode_with_offsets(stream)
    listing = decode_instructions(encoded.payload)
    keys = {offset: key for key, offset in encoded.offsets.items()}
    for instruction in listing.instructions:
        instruction.op.key = keys[instruction.op.key]
    return listing

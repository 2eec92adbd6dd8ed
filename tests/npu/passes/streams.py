"""Encoded streams, and memory rates of targets."""

from __future__ import annotations

from ethorch.npu.cycles import Regions
from ethorch.npu.ir import Stream
from ethorch.npu.ir.encode import encode_with_offsets
from ethorch.npu.verify import Listing, decode_instructions
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates


def read_rates(target: str) -> Regions:
    return read_memory_rates(EthosUCompileSpec(target))


def read_dram_rates(target: str) -> Regions:
    """Return rates with the constants in DRAM and the other regions in SRAM."""
    rates = read_memory_rates(EthosUCompileSpec(target, "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram"))
    return {**rates, 1: rates[2]}


def list_instructions(stream: Stream) -> Listing:
    """Return the encoded operations with the keys of the stream."""
    encoded = encode_with_offsets(stream)
    listing = decode_instructions(encoded.payload)
    keys = {offset: key for key, offset in encoded.offsets.items()}
    for instruction in listing.instructions:
        instruction.op.key = keys[instruction.op.key]
    return listing

"""Streams of long attention, encoded streams, and memory rates of targets."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

import ethorch
from ethorch.npu.cycles import Regions
from ethorch.npu.ir import Stream, decode
from ethorch.npu.ir.encode import encode, encode_with_offsets
from ethorch.npu.passes.context import Context
from ethorch.npu.verify import Listing, decode_instructions
from ethorch.program.program import record_of
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates
from tests.npu.verify.simulation import extreme_orders, run
from tests.npu.verify.streams import Case, from_delegate


class LongAttention(nn.Module):
    """Attention with 4 heads, whose scores are larger than its tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, tokens, width = x.shape
        q, k, v = self.project(x).reshape(1, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1)
        result: torch.Tensor = self.output((weights @ v).transpose(1, 2).flatten(2))
        return result


@cache
def compile_long_attention(
    target: str, tokens: int = 64, width: int = 16, *, stream: str = "vela", memory_mode: str | None = None
) -> Case:
    """Compile ``LongAttention``. The compiler compares the outputs with those of the TOSA graph."""
    torch.manual_seed(0)
    calibration = [(torch.randn(1, tokens, width),) for _ in range(2)]
    settings = ethorch.Settings(stream=stream, memory_mode=memory_mode)
    program = ethorch.compile(LongAttention(width).eval(), calibration[0], target, calibration=calibration, settings=settings)
    return from_delegate(target, record_of(program).payloads[0])


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

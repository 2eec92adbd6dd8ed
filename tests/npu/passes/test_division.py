"""Operations that run part by part."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import ethorch
from ethorch.npu.ir import Stream, decode
from ethorch.npu.memory import INTERNAL
from ethorch.npu.passes import allocation, division
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.placement import separate
from ethorch.npu.passes.tiling import Tiler
from ethorch.program.program import record_of
from ethorch.vela.optimize import read_image
from tests.npu.passes.streams import read_rates

TARGETS = ["ethos-u55-128", "ethos-u85-256"]


class Attention(nn.Module):
    """Attention with 4 heads over tokens of 32 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        result: torch.Tensor = self.output(scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return result


def compile_attention(target: str, tokens: int, stream: str = "optimized") -> Stream:
    """Compile ``Attention``. The compiler compares the outputs with those of the TOSA graph."""
    torch.manual_seed(0)
    samples = [(torch.randn(1, tokens, 32),) for _ in range(2)]
    settings = ethorch.Settings(target, stream=stream)
    build = record_of(ethorch.compile(Attention().eval(), samples[0], calibration=samples, settings=settings)).build
    assert build is not None
    compiled = build.delegates[0].compiled
    return decode(compiled.command_stream, read_image(compiled))


@pytest.mark.parametrize("target", TARGETS)
def test_attention_over_256_tokens_fits_in_200_kib(target: str) -> None:
    """The scores of all heads have 256 KiB."""
    assert allocation.count_bytes(compile_attention(target, 256)) < 200 << 10


def test_cycles_are_not_added_for_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("LEAST_BYTES", 0), ("TOLERANCE", 0.2), ("_PRICE", 1)):
        monkeypatch.setattr(division, name, number)
    before = compile_attention("ethos-u85-256", 64, "allocation")
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
    stream = compile_attention("ethos-u55-128", 64, "vela")
    separation = separate(stream)
    tiler = Tiler(separation.stream.ops, separation.stream.image.allocated, separation.lifetimes.segments, -1)
    tables = [number for number, unit in enumerate(tiler.units) if unit.is_table]
    readers = [n for n, unit in enumerate(tiler.units) if any(run.region == INTERNAL for op in unit.ops for run in op.reads)]
    for table in tables:
        reader = min(n for n in readers if n > table)
        assert tiler.include_tables(reader, reader + 1) <= table
        assert tiler.include_tables(table, reader + 1) == table or any(other < table for other in tables)
        assert tiler.include_tables(reader, reader) == reader

"""Kernels with other block sizes."""

from __future__ import annotations

import numpy as np
import pytest

from ethorch.npu.ir import Op, Stream, decode
from ethorch.npu.ir.encode import encode
from ethorch.npu.passes import block_sizes
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import optimize
from ethorch.npu.verify import decode_instructions, shram, verify
from ethorch.npu.verify.instruction import describe
from tests.npu.passes.streams import list_instructions, read_rates
from tests.npu.verify.simulation import extreme_orders, run
from tests.npu.verify.streams import Case, compile_case

TARGETS = ["ethos-u55-32", "ethos-u55-128", "ethos-u65-512", "ethos-u85-128", "ethos-u85-256", "ethos-u85-2048"]


def change_blocks(network: str, target: str) -> tuple[Case, Stream, Stream]:
    """Return a network's stream before and after the pass, which the verifier accepts."""
    case = compile_case(network, target)
    before = decode(case.payload, case.image)
    result = optimize(case.payload, case.image, Context(read_rates(target), passes=frozenset({"block-sizes"})))
    assert result is None or not result.rejections
    return case, before, before if result is None else result.stream


def block_of(op: Op) -> tuple[int, int, int]:
    return shram.block_size(describe(op))


@pytest.mark.parametrize(
    ("network", "target"),
    [
        *(("blocks", target) for target in TARGETS),
        ("attention", "ethos-u55-128"),
        ("attention", "ethos-u85-256"),
        ("steps", "ethos-u85-512"),
    ],
)
def test_other_blocks_save_cycles_and_change_no_byte(network: str, target: str) -> None:
    case, before, after = change_blocks(network, target)
    context = Context(read_rates(target))
    changed = [(a, b) for a, b in zip(before.ops, after.ops, strict=True) if not a.is_dma and block_of(a) != block_of(b)]
    assert changed and context.rate(after) < context.rate(before)
    for a, b in changed:
        assert block_of(a)[2] == block_of(b)[2] or a.name not in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE")
        height, width, depth = block_of(b)
        assert height * width * depth <= np.prod(block_of(a))
        assert depth % 16 == 0 or depth >= b.values["OFM_DEPTH"]
    listing = list_instructions(after)
    expected = run(decode_instructions(case.payload), case.image, 0)
    assert expected is not None
    assert all(run(listing, after.image, 0, order) == expected for order in (None, *extreme_orders(listing)))


def test_blockdep_follows_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = compile_case("joined", "ethos-u55-32")
    stream, context = decode(case.payload, case.image), Context(read_rates("ethos-u55-32"))
    changed = block_sizes.run(stream, context)
    assert changed is not None and verify(encode(changed), changed.image) == []
    monkeypatch.setattr(
        block_sizes, "_update_blockdeps", lambda ops, changes: [changes.get(position, op) for position, op in enumerate(ops)]
    )
    changed = block_sizes.run(stream, context)
    assert changed is not None and {each.rule for each in verify(encode(changed), changed.image)} == {"blockdep"}


def test_kernels_whose_block_vela_restricts_stay() -> None:
    stream = decode((case := compile_case("attention", "ethos-u85-256")).payload, case.image)
    context = Context(read_rates("ethos-u85-256"))
    changed = block_sizes.run(stream, context)
    assert changed is not None
    position = next(n for n, (a, b) in enumerate(zip(stream.ops, changed.ops, strict=True)) if block_of(a) != block_of(b))
    kernel = stream.ops[position]
    for registers in ({"IFM_UPSCALE": 1}, {"ACC_FORMAT": kernel.registers["ACC_FORMAT"] | 1 << 4}):
        assert block_sizes._has_fixed_block(kernel.copy(**registers)) and not block_sizes._has_fixed_block(kernel)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_illegal_blocks_are_not_used(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = compile_case("blocks", target)
    stream, context = decode(case.payload, case.image), Context(read_rates(target))
    monkeypatch.setattr(block_sizes, "_SIMILAR", 100.0)
    changed = block_sizes.run(stream, context)
    assert changed is not None and verify(encode(changed), changed.image) == []
    monkeypatch.setattr(block_sizes, "check_operation", lambda *arguments: ["illegal"])
    assert block_sizes.run(stream, context) is None

"""The table of passes, and the verification of their results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ethorch.npu.cycles import Regions
from ethorch.npu.ir import Stream, decode, encode
from ethorch.npu.passes import division
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.names import PASSES
from ethorch.npu.passes.pipeline import PIPELINE, Pass, optimize
from ethorch.npu.verify import decode_instructions, trace_reference, verify
from tests.npu.passes.streams import list_instructions, read_rates
from tests.npu.verify.simulation import run
from tests.npu.verify.streams import Case, compile_case

TARGETS = [
    *("ethos-u55-128", "ethos-u65-512", "ethos-u85-256"),
    *(pytest.param(name, marks=pytest.mark.long) for name in ("ethos-u55-32", "ethos-u65-256")),
]


def compile_with_rates(network: str, target: str) -> tuple[Case, Regions]:
    return compile_case(network, target), read_rates(target)


def test_passes_have_names_and_an_order() -> None:
    names = [entry.name for entry in PIPELINE]
    assert set(names) == set(PASSES) and len(names) == len(set(names))
    for number, entry in enumerate(PIPELINE):
        assert not set(entry.after) & set(names[number:])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("network", ["blocks", "attention"])
def test_encoded_streams_equal_decoded_ones(network: str, target: str) -> None:
    """The encoder derives waits and keeps bytes, cycles and dataflow."""
    case, regions = compile_with_rates(network, target)
    stream, context = decode(case.payload, case.image), Context(regions)
    payload = encode(stream)
    assert verify(payload, case.image) == []
    assert context.rate(decode(payload, case.image)) == context.rate(stream)
    before, after = decode_instructions(case.payload), list_instructions(stream)
    assert run(before, case.image, 0) == run(after, case.image, 0)
    assert trace_reference(before, case.image) == trace_reference(after, case.image)


def test_a_stream_without_changes_is_kept() -> None:
    case, regions = compile_with_rates("blocks", "ethos-u55-128")
    assert optimize(case.payload, case.image, Context(regions), ()) is None
    assert optimize(case.payload, case.image, Context(regions, passes=frozenset())) is None


def read_too_far(stream: Stream, context: Context) -> Stream:
    """A wrong pass: one convolution reads at another address."""
    number = next(n for n, op in enumerate(stream.ops) if op.name == "NPU_OP_CONV" and n)
    ops = list(stream.ops)
    ops[number] = ops[number].copy(IFM_BASE0=ops[number].registers["IFM_BASE0"] + 16)
    return replace(stream, ops=ops)


def write_beyond(stream: Stream, context: Context) -> Stream:
    """A wrong pass: the last kernel writes outside of its region."""
    ops = list(stream.ops)
    ops[-1] = ops[-1].copy(OFM_BASE0=stream.image.sizes[1])
    return replace(stream, ops=ops)


def copy_ops(stream: Stream, context: Context) -> Stream:
    """A correct pass without effect."""
    return replace(stream, ops=[op.copy() for op in stream.ops])


def test_a_rejection_names_the_pass() -> None:
    case, regions = compile_with_rates("blocks", "ethos-u55-128")
    passes = (Pass("first", copy_ops, keeps_dataflow=True), Pass("wrong", read_too_far, keeps_dataflow=True))
    result = optimize(case.payload, case.image, Context(regions), passes)
    assert result is not None and result.rejected == "wrong" and result.rejections
    assert [effect.name for effect in result.effects] == ["first", "wrong"]
    result = optimize(case.payload, case.image, Context(regions), passes[:1])
    assert result is not None and not result.rejected and result.effects[0].cycles_before == result.effects[0].cycles_after


def test_a_stream_that_breaks_a_rule_itself_is_kept() -> None:
    """A pass is not blamed for what the verifier also rejects in Vela's stream."""
    case, regions = compile_with_rates("blocks", "ethos-u55-128")
    stream = decode(case.payload, case.image)
    place = next(number for number, op in enumerate(stream.ops) if op.name == "NPU_OP_CONV")
    stream.ops[place].set_registers(WEIGHT_LENGTH=stream.ops[place].registers["WEIGHT_LENGTH"] - 16)
    wrong = encode(stream)
    assert verify(wrong, case.image)
    assert optimize(wrong, case.image, Context(regions), [Pass("copy", copy_ops)]) is None
    inherited = {rejection.rule for rejection in verify(wrong, case.image)}
    result = optimize(wrong, case.image, Context(regions), [Pass("copy", copy_ops), Pass("wrong", write_beyond)])
    assert result is not None and result.rejected == "wrong"
    assert inherited.isdisjoint(rejection.rule for rejection in result.rejections)


def test_long_streams_are_kept() -> None:
    case, regions = compile_with_rates("blocks", "ethos-u55-128")
    count = len(decode(case.payload, case.image).ops)
    for most, is_changed in ((count, True), (count - 1, False)):
        result = optimize(case.payload, case.image, Context(regions), [Pass("copy", copy_ops, most_ops=most)])
        assert (result is not None) == is_changed


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("network", ["blocks", "attention"])
def test_results_of_passes_are_rated_as_their_encoded_streams(network: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation must not keep the accesses that it had at other addresses."""
    monkeypatch.setattr(division, "LEAST_BYTES", 0)
    case, regions = compile_with_rates(network, target)
    stream, context = decode(case.payload, case.image), Context(regions)
    for entry in PIPELINE:
        changed = entry.run(stream, context)
        if changed is not None:
            stream = changed
            decoded = decode(encode(stream), stream.image)
            assert context.rate(decoded) == context.rate(stream), entry.name
            assert [op.writes for op in decoded.ops] == [op.writes for op in stream.ops]
            assert [op.reads for op in decoded.ops] == [op.reads for op in stream.ops]

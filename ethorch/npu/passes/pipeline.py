"""Run the passes in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ethorch.npu.ir import Stream, decode
from ethorch.npu.ir.dataflow import Dataflow
from ethorch.npu.ir.encode import Encoded, encode_with_offsets
from ethorch.npu.ir.image import Image
from ethorch.npu.passes import (
    allocation,
    attention,
    block_sizes,
    copy_elision,
    division,
    dma_copies,
    early_transfers,
    fast_maps,
    resident_weights,
)
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.effect import PassEffect
from ethorch.npu.verify import Rejection, collect_forms, decode_instructions, trace_reference, verify_listing


@dataclass(frozen=True)
class Pass:
    name: str
    run: Callable[[Stream, Context], Stream | None]  # returns a changed copy of the stream, or None
    after: tuple[str, ...] = ()  # passes that must run before
    keeps_dataflow: bool = False  # the verifier compares the values that operations read
    most_ops: int | None = None  # longer streams are not changed, because that would take more than about ten seconds


PIPELINE = (
    Pass("attention", attention.run),
    Pass("copy-elision", copy_elision.run, after=("attention",), keeps_dataflow=True, most_ops=4_000),
    Pass("dma-copies", dma_copies.run, after=("copy-elision",), keeps_dataflow=True, most_ops=2_000),
    Pass("block-sizes", block_sizes.run, after=("dma-copies",), keeps_dataflow=True, most_ops=16_000),
    Pass("resident-weights", resident_weights.run, after=("block-sizes",), keeps_dataflow=True, most_ops=16_000),
    Pass("fast-maps", fast_maps.run, after=("resident-weights",), keeps_dataflow=True, most_ops=4_000),
    Pass("early-transfers", early_transfers.run, after=("fast-maps",), keeps_dataflow=True, most_ops=16_000),
    Pass("allocation", allocation.run, after=("early-transfers",), keeps_dataflow=True, most_ops=16_000),
    Pass("division", division.run, after=("allocation",), most_ops=4_000),
)


@dataclass(frozen=True)
class Optimized:
    """A changed stream. It must not be used if ``rejected`` names a pass."""

    before: Stream
    stream: Stream
    encoded: Encoded
    effects: tuple[PassEffect, ...]
    rejected: str = ""
    rejections: Sequence[Rejection] = field(default=())


def optimize(payload: bytes, image: Image, context: Context, pipeline: Sequence[Pass] = PIPELINE) -> Optimized | None:
    """Run the passes and verify the result.

    Return None if no pass changes the stream, or if the result violates only rules that Vela's stream also violates.

    Raises:
        MachineFault: The payload cannot be decoded.
    """
    before = decode(payload, image)
    stream, steps = before, list[tuple[Pass, Stream]]()
    effects = []
    for stage in pipeline:
        if context.passes is not None and stage.name not in context.passes:
            continue
        if stage.most_ops is not None and len(stream.ops) > stage.most_ops:
            continue
        changed = stage.run(stream, context)
        if changed is None or changed is stream:
            continue
        effects.append(_compare(stage.name, stream, changed, context))
        stream = changed
        steps.append((stage, stream))
    if not steps:
        return None
    encoded = encode_with_offsets(stream)
    optimized = Optimized(before, stream, encoded, tuple(effects))
    keeps = [stage.keeps_dataflow for stage, _ in steps]
    original = decode_instructions(payload)
    reference = trace_reference(original, image) if all(keeps) else None
    vela_forms = collect_forms(original.facts())
    rejections = _verify(encoded, stream, reference, vela_forms)
    if not rejections:
        return optimized
    rules = {rejection.rule for rejection in verify_listing(original, image, vela_forms=vela_forms)}
    if all(rejection.rule in rules for rejection in rejections):
        return None
    new = [rejection for rejection in rejections if rejection.rule not in rules]
    return replace(optimized, rejected=_find_pass(steps, reference, vela_forms, rules), rejections=new)


def _compare(name: str, before: Stream, after: Stream, context: Context) -> PassEffect:
    sizes = [sum(stream.image.sizes.values()) for stream in (before, after)]
    return PassEffect(name, context.rate(before), context.rate(after), *sizes)


def _verify(encoded: Encoded, stream: Stream, reference: Dataflow | None, vela_forms: frozenset[str]) -> list[Rejection]:
    listing = decode_instructions(encoded.payload)
    keys: Mapping[int, int] = {offset: key for key, offset in encoded.offsets.items()}
    for instruction in listing.instructions:
        instruction.op.key = keys[instruction.op.key]
    return list(verify_listing(listing, stream.image, reference=reference, vela_forms=vela_forms))


def _find_pass(
    steps: Sequence[tuple[Pass, Stream]], reference: Dataflow | None, vela_forms: frozenset[str], rules: Collection[str]
) -> str:
    """Return the name of the first pass whose result violates rules other than ``rules``, those violated by Vela's stream."""
    for stage, stream in steps:
        if any(rejection.rule not in rules for rejection in _verify(encode_with_offsets(stream), stream, reference, vela_forms)):
            return stage.name
    return steps[-1][0].name

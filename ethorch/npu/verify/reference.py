"""Compare the dataflow of a stream with a reference."""

from __future__ import annotations

from collections.abc import Iterator

from ethorch.npu.ir.dataflow import Dataflow, LabelMemory, trace_dataflow
from ethorch.npu.ir.image import Image
from ethorch.npu.verify.coverage import is_stored
from ethorch.npu.verify.instruction import Listing, describe, reject
from ethorch.npu.verify.rejection import Rejection


def trace_reference(listing: Listing, image: Image) -> Dataflow:
    return trace_dataflow([instruction.op for instruction in listing.instructions], image.constants, image.inputs, image.outputs)


def check_dataflow(listing: Listing, image: Image, reference: Dataflow) -> Iterator[Rejection]:
    """Check that the operations read the same values as the operations of the reference."""
    ops = [instruction.op for instruction in listing.instructions]
    memory = LabelMemory(ops, image.constants, (*image.inputs, *image.outputs))
    for number, place in enumerate(image.inputs):
        memory.write_input(number, place)
    for index, op in enumerate(ops):
        expected = reference.reads.get(op.key)
        digests = memory.execute(op)
        if expected is None or digests == expected:
            continue
        facts = describe(op)
        assert facts.prepared is not None
        names = [access.name for access in facts.prepared.reads if is_stored(access)]
        names += ["ACTIVATION" if facts.table is not None else "DMA0"] * (len(digests) - len(names))
        different = [name for name, a, b in zip(names, digests, expected, strict=False) if a != b]
        yield reject(
            facts, index, "dataflow", different[0] if different else "all", "different from the reference", "the same values"
        )
    for number, (place, digest) in enumerate(zip(image.outputs, reference.outputs, strict=True)):
        if memory.digest_span(*place) != digest:
            text = "different from the reference"
            yield Rejection("dataflow", len(ops), "end of stream", f"output {number}", text, "the same values")

"""Check command streams for violations of the hardware's and Vela's rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ethorch.npu.ir.dataflow import Dataflow
from ethorch.npu.ir.image import Image
from ethorch.npu.registers import U85
from ethorch.npu.verify import blocks_u85, shram
from ethorch.npu.verify.addresses import check_addresses
from ethorch.npu.verify.blockdep import check_blockdep
from ethorch.npu.verify.chains import check_chains
from ethorch.npu.verify.forms import check_forms, collect_forms
from ethorch.npu.verify.instruction import Facts, Instruction, Listing, decode_instructions, reject
from ethorch.npu.verify.reference import check_dataflow, trace_reference
from ethorch.npu.verify.rejection import Rejection
from ethorch.npu.verify.values import check_values
from ethorch.npu.verify.waits import check_waits

__all__ = [
    "Image",
    "Listing",
    "Rejection",
    "check_operation",
    "collect_forms",
    "decode_instructions",
    "trace_reference",
    "verify",
    "verify_listing",
]


def verify(payload: bytes, image: Image, reference: Dataflow | None = None) -> list[Rejection]:
    """Return the rule violations in a driver payload.

    Raises:
        MachineFault: The payload is malformed, or has branches or interrupts.
    """
    return list(verify_listing(decode_instructions(payload), image, reference=reference))


def verify_listing(
    listing: Listing,
    image: Image,
    changed: Collection[int] | None = None,
    reference: Dataflow | None = None,
    vela_forms: frozenset[str] = frozenset(),
) -> Iterator[Rejection]:
    """Yield the rule violations in decoded instructions.

    Rules for the whole stream are checked only if no single operation violates a rule.

    Args:
        changed: Positions of the operations to check individually. Default: all operations.
        reference: Expected dataflow. New operations are not compared with it.
        vela_forms: Combinations of register values in Vela's stream. They are legal in addition to those in ``forms``.
    """
    facts = listing.facts()
    positions = range(len(facts)) if changed is None else changed
    local = [rejection for index in positions for rejection in check_operation(facts[index], index, image, vela_forms)]
    if local:
        yield from local
        return
    has_rejections = False
    for rejection in check_stream(listing.instructions, facts, image):
        has_rejections = True
        yield rejection
    if reference is not None and not has_rejections:
        yield from check_dataflow(listing, image, reference)


def check_operation(facts: Facts, index: int, image: Image, vela_forms: frozenset[str]) -> Iterator[Rejection]:
    if facts.prepared is None:
        yield reject(facts, index, "registers", facts.fault.split(":")[0].split(" ")[0], facts.fault, "legal registers")
        return
    yield from check_addresses(facts, index, image)
    if not facts.is_dma:
        rules = blocks_u85 if facts.npu.family == U85 else shram
        yield from rules.check_block(facts, index)
    yield from check_forms(facts, index, vela_forms)


def check_stream(instructions: Sequence[Instruction], facts: Sequence[Facts], image: Image) -> Iterator[Rejection]:
    yield from check_chains(facts)
    yield from check_waits(instructions, facts)
    yield from check_blockdep(instructions, facts)
    yield from check_values(facts, image)

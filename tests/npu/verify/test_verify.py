"""Verification of command streams: Vela's pass, and mutations of them do not."""

from __future__ import annotations

import zlib

import pytest

from ethorch.npu.ir import decode, encode
from ethorch.npu.verify import Image, decode_instructions, trace_reference, verify, verify_listing
from ethorch.npu.verify.blockdep import list_jobs
from ethorch.npu.verify.instruction import Listing
from ethorch.npu.verify.reference import check_dataflow
from tests.npu.verify.mutations import KINDS, Mutator, draw_many
from tests.npu.verify.simulation import extreme_orders, is_harmless, run
from tests.npu.verify.streams import Case, benchmark_cases, compile_benchmark, compile_case

SMALL = [("blocks", "ethos-u55-128"), ("attention", "ethos-u55-128"), ("blocks", "ethos-u85-256")]
TARGETS = ["ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256", "ethos-u65-256", "ethos-u65-512"]
TARGETS += [f"ethos-u85-{macs}" for macs in (128, 256, 512, 1024, 2048)]
FEW, MANY = 12, 1000


def mutate(case: Case, kind: str, count: int) -> list[str]:
    """Return descriptions of mutations that neither a rule, the reference nor the simulator accounts for."""
    listing = decode_instructions(case.payload)
    reference = trace_reference(listing, case.image)
    missed = []
    for mutation in draw_many(Mutator(listing, case.image, zlib.crc32(f"{case.name} {kind}".encode())), kind, count):
        if next(verify_listing(mutation.listing, case.image, mutation.changed, reference), None) is not None:
            continue
        if not is_harmless(listing, mutation.listing, case.image, (0,), same_operations=kind == "removed wait"):
            missed.append(f"{case.name}, {kind}: {mutation.text}")
    return missed


@pytest.mark.parametrize("target", TARGETS)
def test_streams_of_vela_pass(target: str) -> None:
    case = compile_case("blocks", target)
    assert [str(rejection) for rejection in verify(case.payload, case.image)] == []


@pytest.mark.parametrize(("network", "target"), SMALL)
def test_streams_keep_their_dataflow(network: str, target: str) -> None:
    case = compile_case(network, target)
    reference = trace_reference(decode_instructions(case.payload), case.image)
    assert verify(case.payload, case.image, reference) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("network", "target"), SMALL)
def test_mutations_are_rejected(network: str, target: str, kind: str) -> None:
    assert mutate(compile_case(network, target), kind, FEW) == []


@pytest.mark.parametrize(("network", "target"), SMALL)
def test_encoded_streams_pass(network: str, target: str) -> None:
    """The optimizer's encoder derives waits and keeps the layout registers."""
    case = compile_case(network, target)
    assert [str(rejection) for rejection in verify(encode(decode(case.payload)), case.image)] == []


def test_a_rejection_names_operation_register_and_values() -> None:
    case = compile_case("blocks", "ethos-u55-128")
    listing = decode_instructions(case.payload)
    index = next(n for n, facts in enumerate(listing.facts()) if facts.name == "NPU_OP_CONV")
    mutation = Mutator(listing, case.image, 0).with_registers("SHRAM layout", index, AB_START=1)
    rejection = next(verify_listing(mutation.listing, case.image, mutation.changed))
    layout = listing.facts()[index].values["AB_START"]
    assert (rejection.rule, rejection.index, rejection.operation) == ("shram-layout", index, "NPU_OP_CONV WEIGHTS")
    assert (rejection.register, rejection.found, rejection.allowed) == ("AB_START", 1, str(layout))


def test_a_missing_wait_changes_outputs_in_some_order() -> None:
    """The simulator shows the race that a removed wait permits."""
    case = compile_case("blocks", "ethos-u55-128")
    listing = decode_instructions(case.payload)
    instructions = [type(instruction)(instruction.op) for instruction in listing.instructions]
    without = Listing(listing.npu, instructions)
    expected = run(listing, case.image, 0)
    assert expected is not None
    assert any(run(without, case.image, 0, order) != expected for order in extreme_orders(without))
    assert {rejection.rule for rejection in verify_listing(without, case.image, ())} == {"wait"}


def test_a_reader_of_another_value_is_found_by_the_reference() -> None:
    case = compile_case("blocks", "ethos-u55-128")
    listing = decode_instructions(case.payload)
    reference = trace_reference(listing, case.image)
    facts = listing.facts()
    index = next(n for n, each in enumerate(facts) if each.mode == "ADD")
    ifm2 = listing.instructions[index].op.registers["IFM2_BASE0"]
    mutation = Mutator(listing, case.image, 0).with_registers("moved buffer", index, IFM_BASE0=ifm2)
    assert [rejection.index for rejection in check_dataflow(mutation.listing, case.image, reference)] == [index]


def test_bytes_of_a_wrong_transfer_are_found_at_their_reader() -> None:
    case = compile_case("classifier", "ethos-u55-128")
    listing = decode_instructions(case.payload)
    reference = trace_reference(listing, case.image)
    facts = listing.facts()
    index = next(n for n, each in enumerate(facts) if each.is_dma and each.writes[0].region == 1)
    target = facts[index].writes[0]
    readers = {
        n
        for n, each in enumerate(facts)
        for run in each.reads
        if run.region == 1 and run.low < target.high and target.low < run.high
    }
    source = listing.instructions[index].op.registers["DMA0_SRC"]
    mutation = Mutator(listing, case.image, 0).with_registers("moved buffer", index, DMA0_SRC=source + 16)
    found = {rejection.index for rejection in check_dataflow(mutation.listing, case.image, reference)}
    assert found and found <= readers and index not in found
    assert reference.reads[listing.instructions[index].op.key] == ()


def test_outputs_must_be_written() -> None:
    case = compile_case("blocks", "ethos-u55-128")
    size = case.image.sizes[1] + 16
    image = Image(case.image.constants, {1: size}, case.image.inputs, ((1, size - 16, size),))
    assert "output" in {rejection.rule for rejection in verify(case.payload, image)}


def test_jobs_are_listed_by_channels_columns_and_rows() -> None:
    assert list_jobs((2, 4, 32), (2, 2, 16), 3) == [
        ((0, 0, 0), (2, 2, 16)),
        ((0, 0, 16), (2, 2, 32)),
        ((0, 2, 0), (2, 4, 16)),
    ]
    assert list_jobs((2, 4, 32), (2, 2, 16), 1, from_end=True) == [((0, 2, 16), (2, 4, 32))]


@pytest.mark.long
@pytest.mark.parametrize(("network", "target"), list(benchmark_cases()))
def test_mutations_of_benchmark_networks_are_rejected(network: str, target: str) -> None:
    """1,000 mutations of each kind over all streams."""
    count = -(-MANY // len(list(benchmark_cases())))
    for case in compile_benchmark(network, target):
        assert [str(rejection) for rejection in verify(case.payload, case.image)] == []
        assert [text for kind in KINDS for text in mutate(case, kind, count)] == []

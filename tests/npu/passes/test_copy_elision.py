"""Kernels that only copy elements, and their removal."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from ethorch.npu.ir import Op, Stream, decode
from ethorch.npu.ir.kernel_copies import KernelCopy, find_kernel_copy
from ethorch.npu.memo import Memo
from ethorch.npu.memory import Memory
from ethorch.npu.passes import copy_elision
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import optimize
from ethorch.npu.verify import decode_instructions, trace_reference, verify_listing
from ethorch.support.errors import MachineFault
from tests.npu.passes.streams import assert_faster_and_equal, list_instructions, read_rates
from tests.npu.verify.simulation import run
from tests.npu.verify.streams import Case, compile_case

TARGETS = ["ethos-u55-32", "ethos-u55-128", "ethos-u65-512", "ethos-u85-128", "ethos-u85-256", "ethos-u85-1024"]
NPUS = ["u55-128", "u85-256"]


def remove_copies(network: str, target: str) -> tuple[Case, Stream, Stream | None]:
    """Return a network's stream before and after the pass, which the verifier accepts."""
    case = compile_case(network, target)
    result = optimize(case.payload, case.image, Context(read_rates(target), passes=frozenset({"copy-elision"})))
    assert result is None or not result.rejections
    return case, decode(case.payload, case.image), result and result.stream


def list_copies(stream: Stream) -> list[Op]:
    return [op for op in stream.ops if find_kernel_copy(op)]


@pytest.mark.parametrize(
    ("network", "target"),
    [*(("heads", target) for target in TARGETS), *((name, f"ethos-{npu}") for name in ("attention", "joined") for npu in NPUS)],
)
def test_fewer_copies_save_cycles_and_change_no_byte(network: str, target: str) -> None:
    case, before, after = remove_copies(network, target)
    assert after is not None
    assert len(list_copies(after)) < len(list_copies(before)) and len(after.ops) < len(before.ops)
    assert_faster_and_equal(case, before, after, Context(read_rates(target)))


def assert_copies(op: Op, copy: KernelCopy, seed: int) -> None:
    """Check that the simulator copies each element."""
    bytes_of = np.random.default_rng(seed)
    memory = {fm.region: bytes_of.integers(0, 256, 1 << 20, np.uint8) for fm in (copy.source, copy.target)}
    expected = {region: content.copy() for region, content in memory.items()}
    size = copy.source.dtype.itemsize
    for source, destination in zip(copy.find_sources().ravel(), copy.target.addresses().ravel(), strict=True):
        expected[copy.target.region][destination : destination + size] = memory[copy.source.region][source : source + size]
    op.prepared.run(Memory(memory, memory[copy.source.region], Memo()))
    assert all(np.array_equal(memory[region], expected[region]) for region in memory)


@pytest.mark.parametrize("target", TARGETS)
def test_copies_are_what_the_simulator_executes(target: str) -> None:
    count = 0
    for network in ("attention", "heads", "joined", "blocks"):
        case = compile_case(network, target)
        for op in decode(case.payload, case.image).ops:
            copy = find_kernel_copy(op)
            if copy is not None:
                assert_copies(op, copy, count)
                count += 1
    assert count > 3


#: Registers that change what a pool computes, with values of which some preserve each element.
REGISTERS = {
    "IFM_ZERO_POINT": (0, 5, 0xFFFB), "OFM_ZERO_POINT": (0, 5, 0xFFFB), "ACTIVATION_MIN": (0, 0x8000, 0xFF80, 0xFF81),
    "ACTIVATION_MAX": (127, 126, 255, 0x7FFF), "ACTIVATION": (0, 4), "KERNEL_STRIDE": (0, 1, 2), "IFM_UPSCALE": (0, 1),
    "OFM_SCALE": (1, 2, 1 << 30 | 30 << 32, 1 << 16 | 16 << 32, 3 << 29 | 30 << 32), "KERNEL_HEIGHT_M1": (0, 1),
}  # fmt: skip


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def test_copies_with_other_registers_are_what_the_simulator_executes(target: str) -> None:
    case = compile_case("heads", target)
    op = list_copies(decode(case.payload, case.image))[0]
    numbers = random.Random(0)
    counts = [0, 0]
    for seed in range(400):
        names = numbers.sample(sorted(REGISTERS), numbers.randrange(1, 5))
        size = numbers.choice((0, 1)) << 2  # IFM_PRECISION.precision
        precision = {name: op.registers[name] & ~(3 << 2) | size for name in ("IFM_PRECISION", "OFM_PRECISION")}
        changed = op.copy(**precision, **{name: numbers.choice(REGISTERS[name]) for name in names})
        try:
            copy = find_kernel_copy(changed)
        except MachineFault:
            continue
        counts[copy is not None] += 1
        if copy is not None:
            assert_copies(changed, copy, seed)
    assert min(counts) > 20


def test_operations_that_compute_are_not_copies() -> None:
    case = compile_case("heads", "ethos-u85-256")
    copy = list_copies(decode(case.payload, case.image))[0]
    zero_point = copy.registers["OFM_ZERO_POINT"]
    assert find_kernel_copy(copy.copy(OFM_ZERO_POINT=zero_point + 1 & 0xFFFF)) is None
    assert find_kernel_copy(copy.copy(ACTIVATION_MAX=100)) is None
    assert find_kernel_copy(copy.copy(ACTIVATION=4)) is None
    assert find_kernel_copy(replace(copy.copy(), name="NPU_OP_DEPTHWISE")) is None


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_readers_of_a_source_that_is_overwritten_compute_the_same(target: str) -> None:
    """After each copy, an operation writes other values to the copy's source."""
    _, before, _ = remove_copies("heads", target)
    count = 0
    for position, op in enumerate(before.ops):
        copy = find_kernel_copy(op)
        writers = [
            other for other in before.ops[:position] if copy and any(run.low == copy.source.bases[0] for run in other.writes)
        ]
        if not writers:
            continue
        zero_point = writers[-1].registers["OFM_ZERO_POINT"] + 3 & 0xFFFF
        other = replace(writers[-1].copy(OFM_ZERO_POINT=zero_point), key=before.new_key(), before=None)
        ops = [*before.ops[: position + 1], other, *before.ops[position + 1 :]]
        changed = replace(before, ops=[replace(op, before=None) for op in ops])
        after = copy_elision.run(changed, Context(read_rates(target)))
        if after is not None:
            assert run(list_instructions(after), after.image, 0) == run(list_instructions(changed), changed.image, 0)
            count += 1
    assert count


def test_the_verifier_follows_copies() -> None:
    """A reader whose map begins elsewhere reads other elements."""
    case, _, after = remove_copies("heads", "ethos-u85-256")
    assert after is not None
    reference = trace_reference(decode_instructions(case.payload), case.image)
    readers = [n for n, op in enumerate(after.ops) if op.registers.get("IFM_REGION") and op.name == "NPU_OP_CONV"]
    for number in readers:
        ops = list(after.ops)
        ops[number] = ops[number].copy(IFM_BASE0=ops[number].registers["IFM_BASE0"] + 16)
        listing = list_instructions(replace(after, ops=ops))
        assert any(verify_listing(listing, after.image, reference=reference))
    assert readers


def test_the_pass_can_be_excluded() -> None:
    case = compile_case("heads", "ethos-u85-256")
    context = Context(read_rates("ethos-u85-256"))
    result = optimize(case.payload, case.image, context)
    assert result is not None and "copy-elision" in [effect.name for effect in result.effects]
    other = optimize(case.payload, case.image, Context(context.regions, passes=frozenset({"allocation"})))
    assert other is None or len(list_copies(other.stream)) == len(list_copies(other.before))

"""Random mutations of command streams, of the kinds that a wrong pass may cause."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ethorch.npu.ir.buffers import Buffer, find_buffers
from ethorch.npu.ir.image import Image
from ethorch.npu.ir.stream import Op
from ethorch.npu.memory import INTERNAL
from ethorch.npu.registers import U85
from ethorch.npu.verify.instruction import Facts, Instruction, Listing

BANK_BYTES = 1024
TABLE_STEP = 256


@dataclass(frozen=True)
class Mutation:
    """A changed stream.

    Attributes:
        index: First changed operation.
        text: Register, and its values before and after.
        changed: Operations with other registers.
        same_operations: True if each operation has a counterpart in the original stream.
    """

    kind: str
    index: int
    text: str
    listing: Listing
    changed: tuple[int, ...]


Mutate = Callable[["Mutator"], "Mutation | None"]


class Mutator:
    """Draws mutations of one stream. The original listing is never changed."""

    def __init__(self, listing: Listing, image: Image, seed: int):
        self.listing, self.image = listing, image
        self.random = random.Random(seed)
        self.facts = listing.facts()
        self._buffers: list[Buffer] | None = None

    @property
    def buffers(self) -> list[Buffer]:
        if self._buffers is None:
            ops = [instruction.op for instruction in self.listing.instructions]
            found = find_buffers(ops, self.image.inputs, self.image.outputs)
            self._buffers = [buffer for buffer in found if buffer.region in self.image.sizes]
        return self._buffers

    def draw(self, kind: str) -> Mutation | None:
        """Return a mutation, or None if the stream has no candidates for this kind."""
        return KINDS[kind](self)

    def with_registers(self, kind: str, index: int, **raw: int) -> Mutation:
        return self.with_many(kind, {index: raw})

    def with_many(self, kind: str, registers: dict[int, dict[str, int]]) -> Mutation:
        instructions = list(self.listing.instructions)
        texts = []
        for index, raw in registers.items():
            op = instructions[index].op
            texts += [f"{index} {name}: {op.registers[name]} -> {value}" for name, value in raw.items()]
            changed = Op(op.npu, op.name, op.parameter, {**op.registers, **raw}, op.key)
            instructions[index] = Instruction(changed, instructions[index].waits)
        positions = tuple(registers)
        return Mutation(kind, min(positions), ", ".join(texts[:4]), Listing(self.listing.npu, instructions), positions)

    def kernels(self) -> list[int]:
        return [index for index, facts in enumerate(self.facts) if not facts.is_dma]

    def choose(self, items: list[int]) -> int | None:
        return self.random.choice(items) if items else None


def remove_wait(m: Mutator) -> Mutation | None:
    """Remove a wait, or let one more operation run."""
    index = m.choose([n for n, instruction in enumerate(m.listing.instructions) if instruction.waits])
    if index is None:
        return None
    instructions = list(m.listing.instructions)
    waits = list(instructions[index].waits)
    at = m.random.randrange(len(waits))
    wait = waits.pop(at)
    text = f"{index} {wait} removed"
    if m.random.random() < 0.3:
        waits.insert(at, replace(wait, count=wait.count + 1))
        text = f"{index} {wait} increased"
    instructions[index] = Instruction(instructions[index].op, tuple(waits))
    return Mutation("removed wait", index, text, Listing(m.listing.npu, instructions), ())


def move_buffer(m: Mutator) -> Mutation | None:
    """Move a buffer by a multiple of 16 bytes: all of its accesses, or those of one operation."""
    candidates = [buffer for buffer in m.buffers if buffer.writers or buffer.readers]
    if not candidates:
        return None
    buffer = m.random.choice(candidates)
    size = m.image.sizes[buffer.region]
    low = m.random.randrange(0, max(size - buffer.size_bytes, 0) // 16 + 1) * 16
    distance = low - buffer.low // 16 * 16
    if not distance:
        return None
    users = sorted({*buffer.writers, *buffer.readers})
    if m.random.random() < 0.5:
        users = [m.random.choice(users)]
    registers: dict[int, dict[str, int]] = {}
    for index in users:
        facts = m.facts[index]
        for run in (*facts.reads, *facts.writes):
            if run.region == buffer.region and buffer.low <= run.low and run.high <= buffer.high:
                if run.base + distance < 0:
                    return None
                registers.setdefault(index, {})[run.register] = run.base + distance
    return m.with_many("moved buffer", registers) if registers else None


def shorten_length(m: Mutator) -> Mutation | None:
    """Shorten the length of a weight stream, a scale stream or a transfer."""
    lengths = []
    for index, facts in enumerate(m.facts):
        for name, raw in m.listing.instructions[index].op.registers.items():
            is_used = name == "DMA0_LEN" or any(run.register == name.replace("LENGTH", "BASE") for run in facts.reads)
            if name.endswith(("_LENGTH", "_LEN")) and is_used and raw & 0xFFFFFFFF > 16:
                lengths.append((index, name, raw & 0xFFFFFFFF))
    if not lengths:
        return None
    index, name, length = m.random.choice(lengths)
    step = 16 if m.random.random() < 0.8 else 1
    return m.with_registers("shortened length", index, **{name: length - step * m.random.randrange(1, -(-length // step))})


def misalign(m: Mutator) -> Mutation | None:
    """Add 1 to 15 bytes to an address."""
    runs = [
        (index, run) for index, facts in enumerate(m.facts) for run in (*facts.reads, *facts.writes) if run.register != "ACTIVATION"
    ]
    index, run = m.random.choice(runs)
    return m.with_registers("misaligned address", index, **{run.register: run.base + m.random.randrange(1, 16)})


def enlarge_block(m: Mutator) -> Mutation | None:
    """Enlarge a block until its data exceed the internal memory, counted without padding or double buffers."""
    index = m.choose(m.kernels())
    if index is None:
        return None
    facts = m.facts[index]
    values = facts.values
    sizes = {axis: values[f"OFM_BLK_{axis}"] for axis in ("HEIGHT", "WIDTH", "DEPTH")}
    if facts.name == "NPU_OP_ELEMENTWISE":
        per_element = 1 << values["IFM_PRECISION.precision"]
    else:
        per_element = 4
    has_rows_only = facts.name == "NPU_OP_ELEMENTWISE" and facts.npu.family == U85  # results of one row, without accumulators
    available = 16 * internal_bytes(facts) if has_rows_only else internal_bytes(facts)
    for _ in range(40):
        axis = m.random.choice(list(sizes))
        sizes[axis] *= m.random.choice((2, 3, 4))
        rows = 1 if has_rows_only else sizes["HEIGHT"]
        if rows * sizes["WIDTH"] * sizes["DEPTH"] * per_element > available:
            raw = {f"OFM_BLK_{axis}_M1": min(size, 65536) - 1 for axis, size in sizes.items()}
            op = m.listing.instructions[index].op
            return m.with_registers("block", index, **{k: v for k, v in raw.items() if op.registers[k] != v})
    return None


def internal_bytes(facts: Facts) -> int:
    """Return the bytes of SHRAM of U55 and U65, or of the memory of accumulators of U85."""
    if facts.npu.family != U85:
        return facts.npu.internal_bytes
    return {128: 8, 256: 16, 512: 32, 1024: 64, 2048: 128}[facts.npu.macs] << 10


def change_layout(m: Mutator) -> Mutation | None:
    """Change a register of the layout of SHRAM."""
    index = m.choose(m.kernels())
    if index is None or m.listing.npu.family == U85:
        return None
    names = ["AB_START", "IFM_IB_END"]
    if any(access.name == "IFM2" for access in m.facts[index].prepared.maps):  # type: ignore[union-attr]
        names.append("IFM2_IB_START")
    name = m.random.choice(names)
    old = m.listing.instructions[index].op.registers[name]
    banks = m.listing.npu.internal_bytes // BANK_BYTES
    value = m.random.choice([bank for bank in range(banks + 4) if bank != old])
    return m.with_registers("SHRAM layout", index, **{name: value})


def reuse_slot(m: Mutator) -> Mutation | None:
    """Read a table from another slot, load it into another slot, or do not load it."""
    users = [index for index, facts in enumerate(m.facts) if facts.table is not None]
    loads = [index for index, facts in enumerate(m.facts) if facts.is_dma and facts.writes[0].region == INTERNAL]
    if not users:
        return None
    way = m.random.randrange(3)
    if way == 0 or not loads:
        index = m.random.choice(users)
        table, op = m.facts[index].table, m.listing.instructions[index].op
        assert table is not None
        step = (table.high - table.low) if m.listing.npu.family == U85 else TABLE_STEP
        old = (table.low - m.listing.npu.lut_base) // step
        slots = [slot for slot in range((2048 - (table.high - table.low)) // step + 1) if slot != old]
        if not slots:
            return None
        difference = m.random.choice(slots) - old
        raw = op.registers["ACTIVATION"] + (difference << 5 if m.listing.npu.family == U85 else difference)
        return m.with_registers("LUT slot", index, ACTIVATION=raw)
    index = m.random.choice(loads)
    run = m.facts[index].writes[0]
    if way == 1:
        size = run.high - run.low
        slots = [
            low for low in range(m.listing.npu.lut_base, m.listing.npu.internal_bytes - size + 1, TABLE_STEP) if low != run.low
        ]
        return m.with_registers("LUT slot", index, DMA0_DST=m.random.choice(slots)) if slots else None
    instructions = list(m.listing.instructions)
    removed = instructions.pop(index)
    following = instructions[index]
    instructions[index] = Instruction(following.op, (*removed.waits, *following.waits))
    return Mutation("LUT slot", index, f"{index} removed", Listing(m.listing.npu, instructions), ())


KINDS: dict[str, Mutate] = {
    "removed wait": remove_wait,
    "moved buffer": move_buffer,
    "shortened length": shorten_length,
    "misaligned address": misalign,
    "block": enlarge_block,
    "SHRAM layout": change_layout,
    "LUT slot": reuse_slot,
}


def draw_many(mutator: Mutator, kind: str, count: int) -> Iterator[Mutation]:
    """Iterate over ``count`` mutations of a kind, or none if the stream has no candidates."""
    produced = attempts = 0
    while produced < count and attempts < 20 * count:
        attempts += 1
        mutation = mutator.draw(kind)
        if mutation is not None:
            produced += 1
            yield mutation

"""What surrounds the CPU, by itself: the MPU and what the cache keeps, priorities, cache maintenance by set and way."""

from __future__ import annotations

import pytest

from ethorch.deploy.virtual_board import mpu
from ethorch.deploy.virtual_board.cache import DataCache
from ethorch.deploy.virtual_board.core import EXTERNAL, PENDSV, SYSTICK, Core
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.unicorn_exceptions import MOST_ENTRIES, Exceptions
from ethorch.deploy.virtual_board.unicorn_hooks import DIRTY, STALE, Hooks
from ethorch.targets import boards

SCS = 0xE000
SRAM = 0x31000000


def core() -> Core:
    return Core("cortex-m55", 96, 0x10000000, lambda: 0, list, lambda: None)


def region(found: Core, number: int, start: int, end: int, attribute: int) -> None:
    """Set a region of the MPU, with an attribute of its own, and switch the MPU on."""
    for at, value in (
        (mpu.RNR, number),
        (mpu.RBAR, start),
        (mpu.RLAR, (end - 32) | number << 1 | 1),
        (mpu.MAIR0, found.mpu.read(mpu.MAIR0) & ~(0xFF << 8 * number) | attribute << 8 * number),
        (mpu.CTRL, 5),
    ):
        found.write(SCS + at, value, 4)


def test_the_default_map() -> None:
    assert list(core().mpu.policies(0x1FFFFF00, 0x20000100)) == [
        (0x1FFFFF00, 0x20000000, mpu.THROUGH),
        (0x20000000, 0x20000100, mpu.BACK),
    ]
    assert [kind for *_, kind in core().mpu.policies(0x9FFFFFF0, 0xA0000010)] == [mpu.THROUGH, mpu.NONE]


@pytest.mark.parametrize(
    "attribute, kind", [(0x44, mpu.NONE), (0x04, mpu.NONE), (0xFF, mpu.BACK), (0xAA, mpu.THROUGH), (0x77, mpu.BACK)]
)
def test_a_region_says_otherwise(attribute: int, kind: str) -> None:
    found = core()
    region(found, 1, SRAM + 0x1000, SRAM + 0x2000, attribute)
    parts = list(found.mpu.policies(SRAM, SRAM + 0x3000))
    assert parts == [
        (SRAM, SRAM + 0x1000, mpu.BACK),
        (SRAM + 0x1000, SRAM + 0x2000, kind),
        (SRAM + 0x2000, SRAM + 0x3000, mpu.BACK),
    ]
    found.write(SCS + mpu.CTRL, 0, 4)
    assert {kind for *_, kind in found.mpu.policies(SRAM, SRAM + 0x3000)} == {mpu.BACK}


def test_aliases_of_four_regions() -> None:
    found = core()
    found.write(SCS + mpu.RNR, 4, 4)
    found.write(SCS + mpu.RBAR + 16, 0x20000000, 4)
    found.write(SCS + mpu.RNR, 6, 4)
    assert found.read(SCS + mpu.RBAR, 4) == 0x20000000
    assert found.read(SCS + mpu.TYPE, 4) == 16 << 8


def cache() -> tuple[DataCache, Core, list[str], Guest]:
    """A cache that is on, the core whose MPU it obeys, and what it says."""
    which, said = boards.load("corstone-300"), list[str]()
    guest = Guest(which)
    made = DataCache(which.cpu, guest, Hooks(), lambda id, text, at: said.append(id), lambda: None)
    found = core()
    made.mpu, made.is_enabled = found.mpu, True
    return made, found, said, guest


def mark(made: DataCache, address: int, flag: int) -> None:
    """The CPU or the NPU has written a line."""
    flags = made._lines(address, address + 1)
    assert flags is not None
    flags |= flag


def test_memory_that_is_not_cached_needs_no_cleaning() -> None:
    made, found, said, _ = cache()
    mark(made, SRAM + 0x1000, DIRTY)
    made.before_run([(SRAM, SRAM + 0x2000)], [], exact=True)
    assert said == ["cache.not_cleaned"]
    region(found, 0, SRAM + 0x1000, SRAM + 0x2000, 0x44)
    made.before_run([(SRAM, SRAM + 0x2000)], [], exact=True)
    assert said == ["cache.not_cleaned"]
    made.after_run([(SRAM, SRAM + 0x2000)], exact=True)
    for address, stale in ((SRAM, STALE), (SRAM + 0x1000, 0)):
        flags = made._lines(address, address + 1)
        assert flags is not None
        assert flags[0] & STALE == stale


def test_what_is_written_through_is_never_dirty_and_may_be_stale() -> None:
    made, _, said, _ = cache()
    bram = 0x11000000
    mark(made, bram, DIRTY)
    made.before_run([(bram, bram + 64)], [], exact=True)
    assert said == []
    made.after_run([(bram, bram + 64)], exact=True)
    flags = made._lines(bram, bram + 1)
    assert flags is not None
    assert flags[0] & STALE


def test_a_stream_of_unknown_extent_is_not_judged() -> None:
    made, _, said, _ = cache()
    mark(made, SRAM, DIRTY)
    made.before_run([(SRAM, SRAM + 64)], [], exact=False)
    assert said == []


def test_a_range_of_the_npu_is_inside_one_memory() -> None:
    made, _, said, guest = cache()
    end = SRAM + next(block.memory.size_bytes for block in guest.blocks if SRAM in block.memory.bases)
    mark(made, end - 1, DIRTY)
    made.before_run([(end - 64, end)], [], exact=True)
    assert said == ["cache.not_cleaned"]
    with pytest.raises(AssertionError):
        made.before_run([(end - 64, end + 1)], [], exact=True)
    with pytest.raises(AssertionError):
        made.after_run([(end - 64, end + 1)], exact=True)


def test_operations_by_address() -> None:
    made, _, _, _ = cache()
    for clean, invalidate, left in ((True, False, STALE), (False, True, 0), (True, True, 0)):
        mark(made, SRAM, DIRTY | STALE)
        made.operate(clean, invalidate, SRAM)
        flags = made._lines(SRAM, SRAM + 1)
        assert flags is not None
        assert flags[0] == left


def test_set_and_way_maintenance_completes_when_every_line_was_addressed() -> None:
    made, found, _, _ = cache()
    found.caches, found.cache_bytes = made, 1024  # 8 sets of 4 ways
    mark(made, SRAM, DIRTY | STALE)
    flags = made._lines(SRAM, SRAM + 1)
    assert flags is not None
    for n in range(64):  # one line, with other values in reserved bits 0, 4 and 29:8
        found.write(SCS + 0xF74, n & 1 | (n >> 1 & 1) << 4 | (n >> 2) << 8, 4)
    for n in range(8):  # one way of every set, at another level
        found.write(SCS + 0xF74, n << 5 | 1 << 1, 4)
    assert flags[0] == DIRTY | STALE
    lines = [n << 5 | way << 30 for n in range(8) for way in range(4)]
    for value in lines[:-1]:
        found.write(SCS + 0xF74, value, 4)
    for value in lines:  # another operation counts its own lines
        if value != lines[-1]:
            found.write(SCS + 0xF6C, value, 4)
    assert flags[0] == DIRTY | STALE
    found.write(SCS + 0xF74, lines[-1], 4)
    assert flags[0] == 0


def test_the_most_urgent_exception_is_taken_first() -> None:
    found = core()
    found.write(SCS + 0x100, 0b11, 4)  # NVIC_ISER0: lines 0 and 1
    found.write(SCS + 0x400, 0x2040, 4)  # NVIC_IPR0: priorities 0x40 and 0x20
    found.write(SCS + 0x200, 0b11, 4)  # NVIC_ISPR0
    assert found.next_exception(masked=True) is None
    assert found.next_exception(masked=False) == EXTERNAL + 1
    found.enter(EXTERNAL + 1)
    assert found.next_exception(masked=False) is None, "0x40 does not interrupt 0x20"
    assert found.leave() == 0
    assert found.next_exception(masked=False) == EXTERNAL
    assert found.next_exception(masked=False, base_priority=0x40) is None
    found.write(SCS + 0x280, 0b01, 4)  # NVIC_ICPR0
    assert found.next_exception(masked=False) is None


def test_pending_by_software() -> None:
    found = core()
    found.write(SCS + 0xD04, 1 << 28, 4)
    assert found.next_exception(masked=False) == PENDSV
    found.write(SCS + 0xD04, 1 << 26, 4)
    found.write(SCS + 0xD04, 1 << 27, 4)
    assert found.next_exception(masked=False) == SYSTICK


def test_a_reload_value_of_zero_stops_the_timer() -> None:
    instructions = 0
    found = Core("cortex-m55", 96, 0x10000000, lambda: instructions, list, lambda: None)
    for reload, fires in ((0, False), (10, True)):
        found.write(SCS + 0x014, reload, 4)
        found.write(SCS + 0x010, 7, 4)
        instructions += 11
        found.tick()
        assert (found.next_exception(masked=False) == SYSTICK) == fires


class Registers:
    """The registers of a CPU that executes nothing."""

    def __init__(self) -> None:
        self.values, self.instructions, self.next_pc = {"SP": SRAM + 0x1000, "MSP": SRAM + 0x1000}, 0, SRAM

    def register(self, name: str) -> int:
        return self.values.get(name, 0)

    def write(self, name: str, value: int) -> None:
        self.values[name] = value
        if name == "SP":
            self.values["MSP"] = value


@pytest.mark.parametrize("progress, number, name", [(0, PENDSV, "exception 14"), (0, EXTERNAL + 3, "interrupt 3"), (1, PENDSV, "")])
def test_a_storm_is_a_handler_that_is_entered_again_at_once(progress: int, number: int, name: str) -> None:
    found, guest, cpu, said = core(), Guest(boards.load("corstone-300")), Registers(), list[str]()
    found.vtor = SRAM
    handlers = guest.bytes_at(SRAM, 4 * 32)
    assert handlers is not None
    handlers.view("<u4")[:] = SRAM | 1
    found.enabled.add(3)
    exceptions = Exceptions(cpu, found, guest, lambda id, text, pc: said.append(f"{id}: {text}"))  # type: ignore[arg-type]
    for _ in range(MOST_ENTRIES + 1):
        assert not said
        found.pending.add(number)
        exceptions.take()
        cpu.instructions += 5  # the handler
        if not said:
            cpu.next_pc = cpu.register("LR")
            exceptions.leave()
        cpu.instructions += progress
    assert [text.split(" was entered")[0] for text in said] == ([f"cpu.interrupt_storm: The handler of {name}"] if name else [])


def test_registers_by_bytes() -> None:
    found = core()
    found.write(SCS + 0x400 + 56, 0x60, 1)
    assert found.read(SCS + 0x400 + 56, 1) == 0x60
    assert found.read(SCS + 0x400 + 56, 4) == 0x60
    assert found.read(SCS + 0xD00, 4) >> 4 & 0xFFF == 0xD22  # a Cortex-M55

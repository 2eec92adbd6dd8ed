"""Emulate a board. unicorn executes a Cortex-M33's instructions, and ``core`` and the devices emulate everything else."""

# unicorn has no interrupt controller and no sleep. It stops after WFI, reports WFE as an invalid instruction, and reports BKPT and
# exception returns as emulator interrupts. This module handles these stops.

from __future__ import annotations

from ethorch.deploy.virtual_board.cache import DataCache
from ethorch.deploy.virtual_board.core import SYSTEM_BASE, SYSTEM_BYTES, Core
from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.engine import Engine
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.npu_device import NpuDevice
from ethorch.deploy.virtual_board.npu_registers import SPAN
from ethorch.deploy.virtual_board.outcome import End
from ethorch.deploy.virtual_board.semihosting import Exit, Semihost
from ethorch.deploy.virtual_board.settings import Settings
from ethorch.deploy.virtual_board.unicorn_cpu import NEVER, PAGE, Cpu, Stop
from ethorch.deploy.virtual_board.unicorn_exceptions import Exceptions
from ethorch.support.errors import ElfError
from ethorch.targets.boards.description import Board

SLICE = 20_000_000  # instructions between checks of the timeout and Ctrl-C: about 10 ms
MASKED_SLICE = 1_000  # instructions between checks of PRIMASK and BASEPRI, which have no hook, while an exception is pending
NPU_INSTRUCTIONS = 400  # CPU instructions during an NPU run; WFE or WFI ends the run immediately
MOST_IDLE = 20_000  # consecutive sleeps without wake-up that count as a permanent sleep
# Interrupt numbers in unicorn, which are QEMU's numbers for Arm exceptions.
_SVC, _PREFETCH, _DATA, _BKPT, _RETURN = 2, 3, 4, 7, 8
_INTERRUPTS = {
    1: "undefined instruction",
    3: "no code at this address",
    4: "no memory at the accessed address",
    17: "absent coprocessor",
    18: "Arm instead of Thumb state",
    19: "stack limit exceeded",
    22: "misaligned access",
}


class UnicornEngine(Engine):
    """An engine that emulates any board in this process."""

    name = "unicorn"

    def __init__(self, board: Board, firmware: Firmware, settings: Settings) -> None:
        super().__init__(board, firmware, settings)
        self.cpu = Cpu(self._access_absent)
        self.guest = self.readable = Guest(board)
        self.guest.load(firmware, settings.data)
        self._end: End | None = None
        self._wake_at: dict[NpuDevice, int] = {}
        self._idle = 0
        table = self._vector_table()
        self.cache = DataCache(board.cpu, self.guest, self.cpu.hooks, self.report, self.cpu.watch_cache)
        self.connect_npus(self.guest, self.cache)
        self.core = Core(
            board.cpu.core,
            board.cpu.interrupts,
            table,
            lambda: self.cpu.instructions,
            lambda: [device.slot.interrupt for device in self.devices if device.irq],
            lambda: self._finish(End("reset")),
            self._reschedule,
        )
        self.core.caches, self.core.cache_bytes, self.core.line_bytes = (
            self.cache,
            board.cpu.dcache_bytes,
            board.cpu.cache_line_bytes,
        )
        self.cache.mpu = self.core.mpu
        self.exceptions = Exceptions(self.cpu, self.core, self.guest, self._fail)
        self.host = Semihost(self.guest, self.serial.put, settings.arguments, lambda: self.cpu.instructions, board.cpu.clock_hz)
        self.cpu.map_memories(board.name, self.guest.blocks, self.cache.flags_address)
        self._map_devices()
        self.cpu.add_hooks()
        stack, start = self.guest.word(table), self.guest.word(table + 4)
        assert stack is not None and start is not None
        self.cpu.write("SP", stack & ~3)
        self.cpu.write("LR", 0xFFFFFFFF)
        self.cpu.next_pc = start & ~1

    @property
    def pc(self) -> int:
        return self.cpu.register("PC")

    @property
    def instructions(self) -> int:
        return self.cpu.instructions

    def on_npu_start(self, device: NpuDevice) -> None:
        """Schedule the end of the NPU run after NPU_INSTRUCTIONS CPU instructions."""
        hooks = self.cpu.hooks
        self._wake_at[device] = hooks.instructions + NPU_INSTRUCTIONS
        hooks.stop_at = min(hooks.stop_at, self._wake_at[device])

    def _reschedule(self) -> None:
        """Stop at the next block if an exception is pending. Otherwise, stop no later than SysTick's next interrupt."""
        hooks = self.cpu.hooks
        due = hooks.instructions if self.core.wakes() else self.core.systick_due()
        if due is not None:
            hooks.stop_at = min(hooks.stop_at, due)

    # Setting up.

    def _vector_table(self) -> int:
        """Return the vector table's address: the board's default if the table is stored there, otherwise the start of a segment."""
        default_table = self.board.cpu.vector_table
        for address in (default_table, *(segment.address for segment in self.firmware.segments)):
            stack, start = self.guest.word(address), self.guest.word(address + 4)
            if not (stack and start and start & 1 and self.guest.find(stack - 4) and self.guest.find(start & ~1)):
                continue
            if address == default_table or start & ~1 == self.firmware.entry:
                return address
        raise ElfError(
            f"{self.firmware.path} has no vector table. Expected a stack pointer, followed by the entry point "
            f"{self.firmware.entry:#010x}, at the start of a segment or at {self.board.cpu.vector_table:#010x} (the "
            f"vector table address of board {self.board.name}). Place the vector table at the start of its segment, and make the "
            "reset handler the entry point."
        )

    def _map_devices(self) -> None:
        self.cpu.map_device(SYSTEM_BASE, SYSTEM_BYTES, self.core.read, self.core.write)
        if self.board.uart.kind != "none":
            for base in (self.board.uart.base, *self.board.uart.aliases):
                self.cpu.map_device(
                    base,
                    PAGE,
                    lambda offset, size: self.serial.read(offset),
                    lambda offset, value, size: self._print(offset, value),
                )
        for device in self.devices:
            for base in (device.slot.base, *device.slot.aliases):
                self.cpu.map_device(base, SPAN, device.read, device.write)

    def _print(self, offset: int, value: int) -> None:
        self.serial.write(offset, value)
        if self.serial.was_off:
            self.note("The firmware prints on a UART whose transmitter is disabled; silicon would print nothing.")
        if self.serial.ended:
            self._finish(End("eot"))

    def _access_absent(self, address: int) -> int:
        self.note(f"The board file has no peripheral at {address:#010x}; reads return 0, and writes are ignored.")
        return 0

    # The end.

    def _finish(self, end: End) -> None:
        self._end = self._end or end
        self.cpu.stop()

    def _fail(self, id: str, text: str, pc: int | None = None) -> None:
        self.report(id, text, pc)
        self._finish(End("fault"))

    # Running.

    def execute(self) -> End:
        while self._end is None:
            self._run_to_event()
        return self._end

    def _run_to_event(self) -> None:
        limit, count = self.settings.max_instructions, self.cpu.instructions
        if limit is not None and count >= limit:
            self._finish(End("instructions"))
            return
        if self.seconds_left() < 0:
            self._finish(End("timeout"))
            return
        length = 1 if self.exceptions.is_deferred else MASKED_SLICE if self.core.wakes() else SLICE
        due = [count + length, limit or NEVER, self.core.systick_due() or NEVER, *self._wake_at.values()]
        stop = self.cpu.run(until=max(min(due), 0))
        self.cache.look()
        if self._end is not None:
            return
        if stop.error is not None:
            self._on_error(stop)
        elif stop.interrupt is not None:
            self._on_interrupt(stop.interrupt)
        elif self.cpu.hooks.instructions < self.cpu.hooks.stop_at and self._follows_sleep():
            self._sleep()  # WFI stops the emulator; WFE is an invalid instruction for it
        if self._end is None:
            self._finish_due()
            self.exceptions.take()

    def _finish_due(self) -> None:
        for device, at in list(self._wake_at.items()):
            if self.cpu.instructions >= at:
                self._finish_npu(device)
        self.core.tick()

    def _finish_npu(self, device: NpuDevice) -> None:
        self._wake_at.pop(device, None)
        device.finish()
        self.exceptions.entries = 0

    def _on_error(self, stop: Stop) -> None:
        if stop.access is not None:
            verb, address, size = stop.access.verb, stop.access.address, stop.access.size
            memory = self.board.memory_at(address)
            if memory is not None and not memory.writable:
                id, place = "cpu.read_only", f"in {memory}"
            else:
                id, place = "cpu.memory", "where the board has no memory"
            self._fail(id, f"The CPU {verb} {size} bytes at {address:#010x}, {place}.", self.cpu.next_pc)
            return
        if stop.is_invalid_instruction and self._follows_sleep():
            self._sleep()
            return
        code = self._code(self.cpu.next_pc)
        if not self.cpu.register("XPSR") >> 24 & 1:
            self._fail(
                "cpu.exception",
                f"The CPU stopped at {code} in Arm instead of Thumb state, for example after a jump to an even address.",
            )
            return
        self._fail(
            "cpu.instruction",
            f"The CPU cannot execute {code} ({stop.error}); unicorn supports Armv8-M with single-precision floats.",
            self.cpu.next_pc,
        )

    def _follows_sleep(self) -> bool:
        """Return True if the instruction before PC is a WFE, WFI or YIELD, after which unicorn stops."""
        before = self.guest.bytes_at(self.cpu.next_pc - 4, 4)
        if before is None:
            return False
        first, second = (int.from_bytes(before[n : n + 2].tobytes(), "little") for n in (0, 2))
        return second in (0xBF10, 0xBF20, 0xBF30) or (first == 0xF3AF and second in (0x8001, 0x8002, 0x8003))

    def _sleep(self) -> None:
        """Advance time until the NPU finishes or SysTick fires."""
        if self._wake_at:
            for device in list(self._wake_at):
                self._finish_npu(device)
            self._idle = 0 if any(not device.running for device in self.devices) else self._idle
        due = self.core.systick_due()
        if due is not None and not self.core.wakes():
            self.cpu.hooks.instructions = max(int(self.cpu.hooks.instructions), due)
            self._idle = 0
        self._idle += 1
        if self._idle > MOST_IDLE:
            self.report("cpu.asleep", f"The CPU sleeps without a wake-up source.{self._why_asleep()}", self.cpu.next_pc - 2)
            self._finish(End("asleep"))

    def _why_asleep(self) -> str:
        causes = ""
        for device in self.devices:
            line = device.slot.interrupt
            if device.running:
                causes += f" {device.npu.name} is running and does not end."
            elif device.irq and line not in self.core.enabled:
                causes += f" {device.npu.name} has raised interrupt {line}, which is not enabled in the NVIC."
            elif device.irq:
                causes += f" {device.npu.name} has raised interrupt {line}, which the CPU masks (by PRIMASK or a priority)."
        return causes

    def _on_interrupt(self, number: int) -> None:
        if number == _BKPT:
            self._breakpoint()
        elif number == _RETURN and self.core.active:
            self.exceptions.leave()
            self._idle = 0
        elif number == _SVC:
            self.core.pending.add(11)
        else:
            what = _INTERRUPTS.get(number, f"emulator exception {number}")
            self._fail("cpu.exception", f"The CPU stopped at {self._code(self.cpu.next_pc)}: {what}.", self.cpu.next_pc)

    def _breakpoint(self) -> None:
        code = self.guest.bytes_at(self.cpu.next_pc, 2)
        number = -1 if code is None else int(code[0])
        if number != 0xAB:
            self._fail("cpu.breakpoint", f"The CPU stopped at breakpoint {number:#x}.", self.cpu.next_pc)
            return
        answer = self.host.call(self.cpu.register("R0"), self.cpu.register("R1"))
        if isinstance(answer, Exit):
            self._finish(End("exit", answer.code))
        elif self.serial.ended:
            self._finish(End("eot"))
        else:
            self.cpu.write("R0", answer & 0xFFFFFFFF)
            self.cpu.next_pc += 2

    def _code(self, address: int) -> str:
        word_bytes = self.guest.bytes_at(address, 4)
        if word_bytes is None:
            return f"{address:#010x}, which is not in a memory"
        first, second = (int.from_bytes(word_bytes[n : n + 2].tobytes(), "little") for n in (0, 2))
        return f"instruction {first:04x}" + (f" {second:04x}" if first >> 11 >= 29 else "")

"""The virtual board on unicorn: a Cortex-M33's instructions, everything around them by ``core`` and the devices.

unicorn has no interrupt controller and no sleep. WFE and WFI arrive as invalid instructions, BKPT and the return from an
exception as interrupts of the emulator; here they get their meaning. The emulator is never stopped inside an access to a device
(it would do the access again): what follows from an access waits for the next block of instructions.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ethorch.deploy.virtual_board.cache import DataCache
from ethorch.deploy.virtual_board.core import EXTERNAL, SYSTEM_BASE, SYSTEM_BYTES, Core
from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.faults import Fault
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.npu_device import NpuDevice
from ethorch.deploy.virtual_board.npu_registers import SPAN
from ethorch.deploy.virtual_board.outcome import Run
from ethorch.deploy.virtual_board.semihosting import Exit, Semihost
from ethorch.deploy.virtual_board.serial import Serial
from ethorch.deploy.virtual_board.settings import Settings
from ethorch.deploy.virtual_board.unicorn_hooks import MOST_MEMORIES, Hooks, address_of
from ethorch.support.errors import ElfError, EmulatorError, EthorchError
from ethorch.targets.boards.description import Board

SLICE = 20_000_000  # instructions between two looks at the clock and at Ctrl-C: about 10 ms
NPU_INSTRUCTIONS = 400  # that the CPU goes on while the NPU runs; a WFE or WFI ends it at once
MOST_IDLE = 20_000  # sleeps in a row that nothing wakes from, before the CPU counts as asleep for good
MOST_ENTRIES = 10_000  # of an interrupt's handler in a row without the line going down
MOST_FAULTS, MOST_NOTES = 100, 100
_PERIPHERALS = range(0x40000000, 0x60000000)
_PAGE = 0x1000
_NEVER = (1 << 63) - 1
_NOWHERE = 0xFFFFFFFE  # an address that is never reached
# What unicorn calls an interrupt: QEMU's numbers of Arm exceptions.
_SVC, _PREFETCH, _DATA, _BKPT, _RETURN = 2, 3, 4, 7, 8
_INTERRUPTS = {
    1: "undefined instruction",
    3: "no code there",
    4: "no memory there",
    17: "no such coprocessor",
    18: "Arm instead of Thumb state",
    19: "stack limit",
    22: "misaligned access",
}
_FRAME_WORDS, _SHORT_FRAME_WORDS = 26, 8  # R0-R3, R12, LR, PC, xPSR; in the long one S0-S15, FPSCR and a reserved word too
_EXC_RETURN, _PROCESS_STACK, _TO_THREAD, _SHORT_FRAME = 0xFFFFFFE1, 4, 8, 16


@dataclass
class _End:
    """The run is over."""

    how: str
    code: int | None = None


@dataclass
class _Found:
    """Faults and notes so far."""

    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)


class UnicornBoard:
    """A board with firmware in it. ``run`` runs it once.

    Raises:
        EmulatorError: unicorn is not installed.
        ElfError: the firmware does not fit the board, or has no vector table.
    """

    def __init__(self, board: Board, firmware: Firmware, settings: Settings):
        try:
            import unicorn
            from unicorn import arm_const
        except ImportError:
            raise EmulatorError('the virtual board needs unicorn: pip install "ethorch[firmware]".') from None
        self._unicorn, self._arm = unicorn, arm_const
        self.board, self.firmware, self.settings = board, firmware, settings
        self.guest = Guest(board)
        self.guest.load(firmware, settings.data)
        self.found = _Found()
        self.hooks = Hooks(stop_at=_NEVER)
        self._end: _End | None = None
        self._error: BaseException | None = None
        self._interrupt: int | None = None
        self._access: tuple[str, int, int] | None = None  # what failed last: kind, address, size
        self._wake_at: dict[NpuDevice, int] = {}
        self._idle = 0
        self._entries = 0
        self._watching = self._cache_hooks = False
        self._uc = self._engine()
        self.serial = Serial(board.uart.kind, settings.on_text)
        self.devices = [
            NpuDevice(self, npu, slot, self.guest, settings.sources, settings.cycles, settings.inject)
            for slot, npu in settings.npus
        ]
        table = self._vector_table()
        self.core = Core(
            board.cpu.core,
            board.cpu.interrupts,
            table,
            lambda: self.hooks.instructions,
            lambda: [device.slot.interrupt for device in self.devices if device.irq],
            lambda: self._finish(_End("reset")),
        )
        self.host = Semihost(self.guest, self.serial.put, settings.arguments, lambda: self.hooks.instructions, board.cpu.clock_hz)
        self._map_memory()
        self._map_devices()
        self._add_hooks()
        stack, start = self.guest.word(table), self.guest.word(table + 4)
        assert stack is not None and start is not None
        self._write("SP", stack & ~3)
        self._write("LR", 0xFFFFFFFF)
        self._pc = start & ~1

    # What devices want of a session.

    @property
    def instructions(self) -> int | None:
        """What the CPU has executed."""
        return int(self.hooks.instructions)

    def report(self, id: str, text: str) -> None:
        """Note a fault at the instruction that is being executed."""
        self._report(id, text)

    def started(self, device: NpuDevice) -> None:
        """A run of the NPU has begun."""
        self._wake_at[device] = self.hooks.instructions + NPU_INSTRUCTIONS
        self.hooks.stop_at = min(self.hooks.stop_at, self._wake_at[device])

    def _report(self, id: str, text: str, pc: int | None = None) -> None:
        place = self.firmware.place(self._register("PC") if pc is None else pc)
        if len(self.found.faults) < MOST_FAULTS:
            self.found.faults.setdefault((id, place), Fault(id, text, place, int(self.hooks.instructions)))

    def _note(self, text: str) -> None:
        if len(self.found.notes) < MOST_NOTES:
            self.found.notes.setdefault(text)

    # Setting up.

    def _engine(self) -> Any:
        uc = self._unicorn.Uc(self._unicorn.UC_ARCH_ARM, self._unicorn.UC_MODE_THUMB | self._unicorn.UC_MODE_MCLASS)
        uc.ctl_set_cpu_model(self._arm.UC_CPU_ARM_CORTEX_M33)
        return uc

    def _vector_table(self) -> int:
        """Where the vector table lies: at the CPU's, or where a segment begins with a stack pointer and the entry."""
        own = self.board.cpu.vector_table
        for address in (own, *(segment.address for segment in self.firmware.segments)):
            stack, start = self.guest.word(address), self.guest.word(address + 4)
            if not (stack and start and start & 1 and self.guest.find(stack - 4) and self.guest.find(start & ~1)):
                continue
            if address == own or start & ~1 == self.firmware.entry:
                return address
        raise ElfError(
            f"{self.firmware.path} has no vector table: neither at {self.board.cpu.vector_table:#010x}, where board "
            f"{self.board.name} starts, nor at the beginning of a segment stand a stack pointer and the entry "
            f"{self.firmware.entry:#010x}. Place the table first, and name the reset handler as the entry."
        )

    def _map_memory(self) -> None:
        uc, rows = self._uc, []
        for block in self.guest.blocks:
            allowed = (
                self._unicorn.UC_PROT_ALL if block.memory.writable else self._unicorn.UC_PROT_READ | self._unicorn.UC_PROT_EXEC
            )
            for base in block.memory.bases:
                uc.mem_map_ptr(base, block.memory.size_bytes, allowed, block.bytes.ctypes.data)
                rows.append((base, block))
        self.cache = DataCache(self.board.cpu, self.guest, self.hooks, self._report, self._watch_cache)
        if len(rows) > MOST_MEMORIES:
            raise EthorchError(
                f"board {self.board.name} has {len(rows)} address ranges; the virtual board has room for {MOST_MEMORIES}."
            )
        for number, (base, block) in enumerate(rows):
            row = self.hooks.memory[number]
            row.base, row.size, row.bytes = base, block.memory.size_bytes, block.bytes.ctypes.data
            row.lines = self.cache.flags_address(block)
        self.hooks.memories = len(rows)
        self.cache.mpu = self.core.mpu
        self.core.caches, self.core.cache_bytes, self.core.line_bytes = (
            self.cache,
            self.board.cpu.dcache_bytes,
            self.board.cpu.cache_line_bytes,
        )
        for device in self.devices:
            device.coherence = self.cache

    def _map_devices(self) -> None:
        self._map(SYSTEM_BASE, SYSTEM_BYTES, self.core.read, self.core.write)
        if self.board.uart.kind != "none":
            for base in (self.board.uart.base, *self.board.uart.aliases):
                self._map(
                    base,
                    _PAGE,
                    lambda offset, size: self.serial.read(offset),
                    lambda offset, value, size: self._print(offset, value),
                )
        for device in self.devices:
            self._map_npu(device)

    def _map_npu(self, device: NpuDevice) -> None:
        for base in (device.slot.base, *device.slot.aliases):
            self._map(base, SPAN, device.read, lambda offset, value, size: device.write(offset, value, size))

    def _map(self, base: int, size: int, read: Callable[[int, int], int], write: Callable[[int, int, int], object]) -> None:
        """A device at an address. What Python raises in it ends the run."""

        def on_read(_uc: Any, offset: int, width: int, _data: Any) -> int:
            try:
                return read(offset, width)
            except BaseException as error:
                self._escaped(error)
                return 0

        def on_write(_uc: Any, offset: int, width: int, value: int, _data: Any) -> None:
            try:
                write(offset, value, width)
            except BaseException as error:
                self._escaped(error)

        self._uc.mmio_map(base, size, on_read, None, on_write, None)

    def _escaped(self, error: BaseException) -> None:
        self._error = self._error or error
        self.hooks.stop_at = 0

    def _print(self, offset: int, value: int) -> None:
        self.serial.write(offset, value)
        if self.serial.was_off:
            self._note("The firmware prints on a UART whose transmitter it has not switched on: silicon prints nothing.")
        if self.serial.ended:
            self._finish(_End("eot"))

    def _finish(self, end: _End) -> None:
        self._end = self._end or end
        self.hooks.stop_at = 0

    def _add_hooks(self) -> None:
        uc, flags = self._uc, self._unicorn
        self._compiled_hook(flags.UC_HOOK_BLOCK, "ethorch_block")
        uc.hook_add(flags.UC_HOOK_INTR, self._on_interrupt)
        kinds = flags.UC_HOOK_MEM_UNMAPPED | flags.UC_HOOK_MEM_PROT
        uc.hook_add(kinds, self._on_failed_access)

    def _watch_cache(self) -> None:
        """From here on loads and stores are looked at; code that is translated already has to be translated anew."""
        if not self._watching:
            self._watching = True
            self.hooks.stop_at = 0

    def _add_cache_hooks(self) -> None:
        self._compiled_hook(self._unicorn.UC_HOOK_MEM_READ, "ethorch_load")
        self._compiled_hook(self._unicorn.UC_HOOK_MEM_WRITE, "ethorch_store")
        self._uc.ctl_flush_tb()

    def _compiled_hook(self, kind: int, name: str) -> None:
        from unicorn.unicorn_py3.unicorn import uclib

        self.hooks.stop = ctypes.cast(uclib.uc_emu_stop, ctypes.c_void_p).value
        handle = ctypes.c_size_t()
        add = uclib["uc_hook_add"]
        add.restype = ctypes.c_int
        code = add(
            self._uc._uch, ctypes.byref(handle), ctypes.c_int(kind), ctypes.c_void_p(address_of(name)), ctypes.byref(self.hooks),
            ctypes.c_uint64(1), ctypes.c_uint64(0),
        )  # fmt: skip
        if code:
            raise EmulatorError(f"unicorn refuses the hook {name} with error {code}; tested is unicorn 2.1.4.")

    def _on_interrupt(self, _uc: Any, number: int, _data: Any) -> None:
        self._interrupt = number
        self._uc.emu_stop()

    def _on_failed_access(self, _uc: Any, kind: int, address: int, size: int, value: int, _data: Any) -> bool:
        """An access where nothing is mapped. Peripherals that the board file does not have read 0 and swallow writes."""
        reads = kind in (self._unicorn.UC_MEM_READ_UNMAPPED, self._unicorn.UC_MEM_READ_PROT)
        writes = kind in (self._unicorn.UC_MEM_WRITE_UNMAPPED, self._unicorn.UC_MEM_WRITE_PROT)
        if address in _PERIPHERALS and (reads or writes):
            page = address & ~(_PAGE - 1)

            def absent(offset: int, _value: int, _width: int = 0) -> int:
                return self._absent(page + offset)

            self._map(page, _PAGE, absent, absent)
            return True
        self._access = ("reads" if reads else "writes" if writes else "executes", address, size)
        return False

    def _absent(self, address: int) -> int:
        self._note(f"The board file has no peripheral at {address:#010x}: reads are 0, writes are lost.")
        return 0

    # Registers.

    def _register(self, name: str) -> int:
        return int(self._uc.reg_read(getattr(self._arm, f"UC_ARM_REG_{name}")))

    def _write(self, name: str, value: int) -> None:
        self._uc.reg_write(getattr(self._arm, f"UC_ARM_REG_{name}"), value)

    # Running.

    def run(self) -> Run:
        """Run to the end. What a callback of the caller's raises, and Ctrl-C, come out of it."""
        started = time.perf_counter()
        while self._end is None:
            self._turn(started)
        for device in self.devices:
            self._wake_at.pop(device, None)
        slot = self.settings.npus[0]
        return Run(
            board=self.board.name,
            npu=", ".join(device.npu.name for device in self.devices),
            backend="unicorn",
            text=self.serial.text,
            ended=self._end.how,
            exit_code=self._end.code,
            faults=tuple(self.found.faults.values()),
            instructions=int(self.hooks.instructions),
            inferences=tuple(sorted((i for d in self.devices for i in d.inferences), key=lambda i: i.started or 0)),
            seconds=time.perf_counter() - started,
            notes=tuple(self.found.notes),
            cpu_clock_hz=self.board.cpu.clock_hz,
            npu_clock_hz=slot[0].clock_hz,
            _read=self._read_memory,
        )

    def _read_memory(self, address: int, size: int) -> bytes:
        found = self.guest.bytes_at(address, size)
        if found is None:
            raise EthorchError(f"board {self.board.name} has no memory at {address:#010x}..{address + size:#010x}.")
        return found.tobytes()

    def _turn(self, started: float) -> None:
        """Run up to the next event, and deal with it."""
        limit = self.settings.max_instructions
        count = int(self.hooks.instructions)
        if limit is not None and count >= limit:
            self._end = _End("instructions")
            return
        if time.perf_counter() - started > self.settings.timeout:
            self._end = _End("timeout")
            return
        due = [count + SLICE, limit or _NEVER, self.core.systick_due() or _NEVER, *self._wake_at.values()]
        self.hooks.stop_at = 0 if self._end else max(min(due), 0)
        self._interrupt = self._access = None
        if self._watching and not self._cache_hooks:
            self._cache_hooks = True
            self._add_cache_hooks()
        problem = None
        try:
            self._uc.emu_start(self._pc | 1, _NOWHERE)
        except self._unicorn.UcError as error:
            problem = error
        self._pc = self._register("PC") & ~1
        if self._error is not None:
            raise self._error
        self.cache.look()
        if self._end is not None:
            return
        if problem is not None:
            self._on_problem(problem)
        elif self._interrupt is not None:
            self._on_stop(self._interrupt)
        elif self.hooks.instructions < self.hooks.stop_at and self._sleeps():
            self._sleep()  # a WFI stops the emulator, a WFE is an instruction that it does not know
        if self._end is None:
            self._on_time()
            self._take_exception()

    def _on_time(self) -> None:
        """Finish what is due: runs of the NPU, and SysTick."""
        for device, at in list(self._wake_at.items()):
            if self.hooks.instructions >= at:
                self._finish_npu(device)
        self.core.tick()

    def _finish_npu(self, device: NpuDevice) -> None:
        self._wake_at.pop(device, None)
        device.finish()
        self._entries = 0

    def _on_problem(self, error: Any) -> None:
        """The emulator has stopped at an instruction: a sleep, an access without memory, or one that it does not know."""
        if self._access is not None:
            verb, address, size = self._access
            memory = self.board.memory_at(address)
            if memory is not None and not memory.writable:
                self._report("cpu.read_only", f"The CPU {verb} {size} bytes at {address:#010x}, in {memory}.", self._pc)
            else:
                self._report(
                    "cpu.memory", f"The CPU {verb} {size} bytes at {address:#010x}, where the board has no memory.", self._pc
                )
            self._end = _End("fault")
            return
        if error.errno == self._unicorn.UC_ERR_INSN_INVALID and self._sleeps():
            self._sleep()
            return
        code = self._code(self._pc)
        if not self._register("XPSR") >> 24 & 1:
            self._report("cpu.exception", f"The CPU stops at {code}: Arm instead of Thumb state, as by a jump to an even address.")
            self._end = _End("fault")
            return
        self._report(
            "cpu.instruction",
            f"The CPU cannot execute {code} ({error}); unicorn knows Armv8-M with single-precision floats.",
            self._pc,
        )
        self._end = _End("fault")

    def _sleeps(self) -> bool:
        """Is the instruction before PC a WFE, WFI or YIELD? unicorn takes them for invalid, PC already behind them."""
        before = self.guest.bytes_at(self._pc - 4, 4)
        if before is None:
            return False
        first, second = (int.from_bytes(before[n : n + 2].tobytes(), "little") for n in (0, 2))
        return second in (0xBF10, 0xBF20, 0xBF30) or (first == 0xF3AF and second in (0x8001, 0x8002, 0x8003))

    def _sleep(self) -> None:
        """The CPU sleeps: time passes until the NPU is done or SysTick fires."""
        if self._wake_at:
            for device in list(self._wake_at):
                self._finish_npu(device)
            self._idle = 0 if any(not device.running for device in self.devices) else self._idle
        due = self.core.systick_due()
        if due is not None and not self.core.wakes():
            self.hooks.instructions = max(int(self.hooks.instructions), due)
            self._idle = 0
        if self.core.wakes():
            self._idle += 1  # masked, or a handler that goes back to sleep
        else:
            self._idle += 1
        if self._idle > MOST_IDLE:
            self._report("cpu.asleep", f"The CPU sleeps, and nothing will wake it.{self._why_asleep()}", self._pc - 2)
            self._end = _End("asleep")

    def _why_asleep(self) -> str:
        said = ""
        for device in self.devices:
            line = device.slot.interrupt
            if device.running:
                said += f" {device.npu.name} is running and does not end."
            elif device.irq and line not in self.core.enabled:
                said += f" {device.npu.name} has raised interrupt {line}, which is not enabled in the NVIC."
            elif device.irq:
                said += f" {device.npu.name} has raised interrupt {line}; the CPU masks it (PRIMASK, or a priority)."
        return said

    def _on_stop(self, number: int) -> None:
        """BKPT, the return from an exception, or something that has gone wrong."""
        if number == _BKPT:
            self._breakpoint()
        elif number == _RETURN and self.core.active:
            self._leave()
        elif number == _SVC:
            self.core.pending.add(11)
        else:
            what = _INTERRUPTS.get(number, f"exception {number} of the emulator")
            self._report("cpu.exception", f"The CPU stops at {self._code(self._pc)}: {what}.", self._pc)
            self._end = _End("fault")

    def _breakpoint(self) -> None:
        code = self.guest.bytes_at(self._pc, 2)
        number = -1 if code is None else int(code[0])
        if number != 0xAB:
            self._report("cpu.breakpoint", f"The CPU stops at breakpoint {number:#x}.", self._pc)
            self._end = _End("fault")
            return
        answer = self.host.call(self._register("R0"), self._register("R1"))
        if isinstance(answer, Exit):
            self._end = _End("exit", answer.code)
        elif self.serial.ended:
            self._end = _End("eot")
        else:
            self._write("R0", answer & 0xFFFFFFFF)
            self._pc += 2

    def _code(self, address: int) -> str:
        found = self.guest.bytes_at(address, 4)
        if found is None:
            return f"{address:#010x}, where there is no memory"
        first, second = (int.from_bytes(found[n : n + 2].tobytes(), "little") for n in (0, 2))
        return f"instruction {first:04x}" + (f" {second:04x}" if first >> 11 >= 29 else "")

    # Exceptions.

    def _take_exception(self) -> None:
        masked = bool(self._register("PRIMASK") & 1 or self._register("FAULTMASK") & 1)
        exception = self.core.next_exception(masked, self._register("BASEPRI"))
        if exception is None:
            return
        if self._register("XPSR") & 0x0600FC00:  # inside an IT block, which the emulator would forget; the next block will do
            self._wake_soon()
            return
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            text = (
                f"The handler of interrupt {exception - EXTERNAL} was entered {MOST_ENTRIES} times, and the line is still raised."
            )
            self._report("cpu.interrupt_storm", text, self._pc)
            self._end = _End("fault")
            return
        handler = self.guest.word(self.core.vtor + 4 * exception)
        if not handler or not handler & 1 or self.guest.find(handler & ~1) is None:
            what = "no memory" if handler is None else f"{handler:#010x}"
            text = f"Exception {exception} is taken, but the vector table at {self.core.vtor:#010x} has {what} for it."
            self._report("cpu.vector", text, self._pc)
            self._end = _End("fault")
            return
        self._enter(exception, handler)

    def _wake_soon(self) -> None:
        self.hooks.stop_at = self.hooks.instructions + 1

    def _enter(self, exception: int, handler: int) -> None:
        """Push the frame with floating-point registers, and go to the handler."""
        stack = self._register("SP")
        aligned = (stack - 4 * _FRAME_WORDS) & ~7
        flags = self._register("XPSR") & 0xF80F0000 | (self.core.active[-1] if self.core.active else 0) | 1 << 24
        if aligned != stack - 4 * _FRAME_WORDS:
            flags |= 1 << 9
        words = [*(self._register(name) for name in ("R0", "R1", "R2", "R3", "R12", "LR")), self._pc, flags]
        words += [*(self._register(f"S{n}") for n in range(16)), self._register("FPSCR"), 0]
        place = self.guest.bytes_at(aligned, 4 * _FRAME_WORDS)
        if place is None:
            self._report(
                "cpu.memory", f"An exception pushes its frame to {aligned:#010x}, where the board has no memory.", self._pc
            )
            self._end = _End("fault")
            return
        place[:] = np.array(words, "<u4").view(np.uint8)
        thread = not self.core.active
        on_process_stack = thread and self._register("CONTROL") & 2
        self.core.enter(exception)
        self._write("SP", aligned)
        self._write("LR", _EXC_RETURN | (_TO_THREAD if thread else 0) | (_PROCESS_STACK if on_process_stack else 0))
        self._write("IPSR", exception)  # from here on SP is the main stack's
        self._pc = handler & ~1

    def _leave(self) -> None:
        """Pop the frame that the value of EXC_RETURN in PC says."""
        kind = self._pc
        stack = self._register("PSP" if kind & _PROCESS_STACK else "MSP")
        size = _SHORT_FRAME_WORDS if kind & _SHORT_FRAME else _FRAME_WORDS
        place = self.guest.bytes_at(stack, 4 * size)
        if place is None:
            text = f"An exception's frame is popped from {stack:#010x}, where the board has no memory."
            self._report("cpu.memory", text, self._register("LR"))
            self._end = _End("fault")
            return
        words = [int(word) for word in place.view("<u4")]
        for name, value in zip(("R0", "R1", "R2", "R3", "R12", "LR"), words, strict=False):
            self._write(name, value)
        self._pc, flags = words[6] & ~1, words[7]
        if size == _FRAME_WORDS:
            for n in range(16):
                self._write(f"S{n}", words[8 + n])
            self._write("FPSCR", words[24])
        self._write("IPSR", self.core.leave())
        if not self.core.active:
            self._write("CONTROL", self._register("CONTROL") & ~2 | (2 if kind & _PROCESS_STACK else 0))
        self._write("SP", stack + 4 * size + (4 if flags >> 9 & 1 else 0))
        self._write("APSR", flags & 0xF80F0000)
        self._idle = 0
        if not any(device.irq for device in self.devices):
            self._entries = 0

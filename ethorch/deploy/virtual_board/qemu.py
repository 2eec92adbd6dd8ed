"""Run firmware on a Cortex-M55 emulated by QEMU, with ethorch's NPU simulator.

An NPU run ends before the CPU continues, so register writes during a run go undetected. Caches are not checked, and
instructions are not counted.
"""

# A gdbstub watchpoint stops an unmodified qemu-system-arm at every access to the NPU, whose address QEMU does not map. This process
# then decodes the instruction with ``thumb`` and executes the access. The test interface raises the NPU's interrupt. Both processes
# map the file that backs the board's DRAM; other memories are copied at each NPU run. Tested with QEMU 7.2.

from __future__ import annotations

import numpy as np

from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.engine import Engine
from ethorch.deploy.virtual_board.gdb import Stop, host_call
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.npu_device import NpuDevice
from ethorch.deploy.virtual_board.npu_registers import SPAN
from ethorch.deploy.virtual_board.outcome import End
from ethorch.deploy.virtual_board.qemu_memory import CopiedGuest
from ethorch.deploy.virtual_board.qemu_process import MACHINES, QemuProcess, check_machine, find
from ethorch.deploy.virtual_board.settings import Settings
from ethorch.deploy.virtual_board.thumb import Access, advance_it_block, decode
from ethorch.support.errors import ElfError, EmulatorError
from ethorch.targets.boards.description import Board

_SP, _PC, _XPSR = 13, 15, 25


class QemuEngine(Engine):
    """An engine that emulates a board with QEMU."""

    name = "qemu"

    def __init__(self, board: Board, firmware: Firmware, settings: Settings) -> None:
        super().__init__(board, firmware, settings)
        check_machine(board)
        if settings.max_instructions is not None:
            raise EmulatorError("max_instructions requires backend='unicorn', because QEMU does not count instructions.")
        self._pc = 0
        self._begun: list[NpuDevice] = []
        self._raised: dict[int, bool] = {}
        self.process = QemuProcess(find(), board, firmware.path.resolve(), settings.arguments)
        self.resources.callback(self.process.close)
        try:
            self.gdb, self.qtest = self.process.gdb, self.process.qtest
            self.guest = CopiedGuest(board, self.process.map_memories(board), self.qtest)
            self.connect_npus(self.guest, self.guest)
            self._load()
        except BaseException:
            self.resources.close()
            raise

    @property
    def pc(self) -> int:
        return self._pc

    def on_npu_start(self, device: NpuDevice) -> None:
        self._begun.append(device)

    # Starting.

    def _load(self) -> None:
        Guest(self.board).load(self.firmware, self.settings.data)  # raises an error for data that does not fit
        for address, content in self.settings.data.items():
            place = Guest.bytes_at(self.guest, address, len(content))
            assert place is not None
            place[:] = np.frombuffer(content, np.uint8)
            self.guest.store(address, len(content))
        table = self._vector_table()
        self.gdb.set_register(_SP, int.from_bytes(table[:4], "little") & ~3)
        self.gdb.set_register(_PC, self.firmware.entry)
        for device in self.devices:
            for base in (device.slot.base, *device.slot.aliases):
                self.gdb.watch(base, SPAN)

    def _vector_table(self) -> bytes:
        for segment in self.firmware.segments:
            if int.from_bytes(segment.data[4:8], "little") == self.firmware.entry | 1:
                return segment.data
        raise ElfError(
            f"{self.firmware.path}: expected a segment that starts with a vector table, got none. The second word of the table "
            f"must be the entry point {self.firmware.entry:#010x}. Place the vector table at the start of a segment."
        )

    # Running.

    def execute(self) -> End:
        self.gdb.send("c")
        while True:
            left = self.seconds_left()
            if left <= 0:
                return End("timeout")
            is_stopped = self.process.wait(min(left, 0.5), self.serial.put)
            if self.serial.ended:
                return End("eot")
            stop = self.gdb.poll() if is_stopped else None
            end = None if stop is None else self._on_stop(stop)
            if end is not None:
                self.process.hear_out(self.serial.put)
                return End("eot") if self.serial.ended else end

    def _on_stop(self, stop: Stop) -> End | None:
        if stop.kind == "W":
            return End("exit", int(stop.text[1:3] or "0", 16))
        if stop.kind == "X":
            return End("fault")
        if stop.kind == "F":
            self.process.hear(self.serial.put)
            host_call(self.gdb, stop.text, self.serial.put)
            return None
        if "watch:" not in stop.text:
            self._pc = self.gdb.registers()[_PC]
            self.report("cpu.exception", f"QEMU stopped the firmware with {stop.text[:40]!r}.")
            return End("fault")
        self._access()
        self.gdb.send("c")
        return None

    def _access(self) -> None:
        registers = self.gdb.registers()
        self._pc = registers[_PC]
        code = self.gdb.read(self._pc, 4)
        access = decode(int.from_bytes(code[:2], "little"), int.from_bytes(code[2:], "little"))
        if access is None:
            place = self.firmware.place(self._pc)
            raise EmulatorError(
                f"expected a plain load or store for an NPU register, got instruction {code.hex()} at {place}. Access NPU "
                "registers through a volatile uint32_t."
            )
        address = access.address(registers)
        for number, register in enumerate(access.registers):
            self._access_one(address + number * access.size, access, register, registers)
        back = access.compute_base(registers)
        if back is not None:
            self.gdb.set_register(access.base, back)
        self.gdb.set_register(_PC, self._pc + access.length)
        flags = self.gdb.register(_XPSR)
        if advance_it_block(flags) != flags:
            self.gdb.set_register(_XPSR, advance_it_block(flags))
        self._finish_runs()

    def _access_one(self, address: int, access: Access, register: int, registers: list[int]) -> None:
        for device in self.devices:
            for base in (device.slot.base, *device.slot.aliases):
                if base <= address < base + SPAN:
                    if access.loads:
                        self.gdb.set_register(register, access.extend(device.read(address - base, access.size)))
                    else:
                        device.write(address - base, registers[register] & (1 << 8 * access.size) - 1, access.size)
                    return

    def _finish_runs(self) -> None:
        for device in self._begun:
            device.finish()
        self._begun.clear()
        machine = MACHINES[self.board.qemu]
        for device in self.devices:
            line = device.slot.interrupt - machine.first_interrupt
            if self._raised.get(line, False) != device.irq:
                self._raised[line] = device.irq
                self.qtest.set_line(machine.interrupts, line, device.irq)

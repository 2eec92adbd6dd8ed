"""CPU emulation with unicorn: registers, memories, devices, hooks and execution."""

# The emulator never stops during an access to a device, because unicorn would repeat the access. Effects of an access on the run
# are therefore deferred to the next block of instructions.

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ethorch.deploy.virtual_board.guest import Block
from ethorch.deploy.virtual_board.unicorn_hooks import MOST_MEMORIES, Hooks, find_hook
from ethorch.support.errors import EmulatorError, EthorchError

PAGE = 0x1000
NEVER = (1 << 63) - 1
_PERIPHERALS = range(0x40000000, 0x60000000)
_NOWHERE = 0xFFFFFFFE  # an address that is never reached


@dataclass(frozen=True)
class Access:
    """A failed access.

    Attributes:
        verb: ``reads``, ``writes`` or ``executes``.
    """

    verb: str
    address: int
    size: int


@dataclass(frozen=True)
class Stop:
    """The reason why the emulator stopped.

    Attributes:
        is_invalid_instruction: Whether unicorn does not support the instruction.
        access: Unmapped or forbidden access that caused the error.
        interrupt: QEMU's exception number if an exception stopped the emulator.
    """

    error: Exception | None
    is_invalid_instruction: bool
    access: Access | None
    interrupt: int | None


class Cpu:
    """A Cortex-M33 emulated by unicorn.

    Args:
        on_absent: Function that receives the address of an access to an absent peripheral, and returns the value to read.

    Attributes:
        next_pc: Address at which execution continues.

    Raises:
        EmulatorError: The package unicorn is not installed.
    """

    def __init__(self, on_absent: Callable[[int], int]) -> None:
        try:
            import unicorn
            from unicorn import arm_const
        except ImportError:
            raise EmulatorError('the virtual board requires unicorn. Run pip install "ethorch[firmware]".') from None
        self._unicorn, self._arm, self._on_absent = unicorn, arm_const, on_absent
        self.hooks = Hooks(stop_at=NEVER)
        self.next_pc = 0
        self._error: BaseException | None = None
        self._interrupt: int | None = None
        self._access: Access | None = None
        self._watching = self._watches = False
        self._uc = unicorn.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS)
        self._uc.ctl_set_cpu_model(arm_const.UC_CPU_ARM_CORTEX_M33)

    @property
    def instructions(self) -> int:
        return int(self.hooks.instructions)

    def register(self, name: str) -> int:
        return int(self._uc.reg_read(getattr(self._arm, f"UC_ARM_REG_{name}")))

    def write(self, name: str, value: int) -> None:
        self._uc.reg_write(getattr(self._arm, f"UC_ARM_REG_{name}"), value)

    # Memory and devices.

    def map_memories(self, board: str, blocks: Sequence[Block], flags_address: Callable[[Block], int | None]) -> None:
        """Map memories at all their addresses.

        Args:
            flags_address: Function that returns the address of a memory's cache line flags.
        """
        unicorn, rows = self._unicorn, []
        for block in blocks:
            allowed = unicorn.UC_PROT_ALL if block.memory.writable else unicorn.UC_PROT_READ | unicorn.UC_PROT_EXEC
            for base in block.memory.bases:
                self._uc.mem_map_ptr(base, block.memory.size_bytes, allowed, block.bytes.ctypes.data)
                rows.append((base, block))
        if len(rows) > MOST_MEMORIES:
            raise EthorchError(f"board {board} has {len(rows)} address ranges; the virtual board supports at most {MOST_MEMORIES}.")
        for number, (base, block) in enumerate(rows):
            row = self.hooks.memory[number]
            row.base, row.size, row.bytes = base, block.memory.size_bytes, block.bytes.ctypes.data
            row.lines = flags_address(block)
        self.hooks.memories = len(rows)

    def map_device(self, base: int, size: int, read: Callable[[int, int], int], write: Callable[[int, int, int], object]) -> None:
        """Map a device with ``read(offset, size)`` and ``write(offset, value, size)``. Exceptions raised by these end the run."""

        def on_read(_uc: Any, offset: int, width: int, _data: Any) -> int:
            try:
                return read(offset, width)
            except BaseException as error:
                self._keep_error(error)
                return 0

        def on_write(_uc: Any, offset: int, width: int, value: int, _data: Any) -> None:
            try:
                write(offset, value, width)
            except BaseException as error:
                self._keep_error(error)

        self._uc.mmio_map(base, size, on_read, None, on_write, None)

    def _keep_error(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()

    # Hooks.

    def add_hooks(self) -> None:
        unicorn = self._unicorn
        self._add_compiled_hook(unicorn.UC_HOOK_BLOCK, "ethorch_block")
        self._uc.hook_add(unicorn.UC_HOOK_INTR, self._on_interrupt)
        self._uc.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED | unicorn.UC_HOOK_MEM_PROT, self._on_failed_access)

    def watch_cache(self) -> None:
        """Request a stop. The next run adds hooks for loads and stores, and discards translated code."""
        if not self._watching:
            self._watching = True
            self.stop()

    def _add_cache_hooks(self) -> None:
        self._add_compiled_hook(self._unicorn.UC_HOOK_MEM_READ, "ethorch_load")
        self._add_compiled_hook(self._unicorn.UC_HOOK_MEM_WRITE, "ethorch_store")
        self._uc.ctl_flush_tb()

    def _add_compiled_hook(self, kind: int, name: str) -> None:
        from unicorn.unicorn_py3.unicorn import uclib

        self.hooks.stop = ctypes.cast(uclib.uc_emu_stop, ctypes.c_void_p).value
        handle = ctypes.c_size_t()
        add = uclib["uc_hook_add"]
        add.restype = ctypes.c_int
        code = add(
            self._uc._uch, ctypes.byref(handle), ctypes.c_int(kind), ctypes.c_void_p(find_hook(name)), ctypes.byref(self.hooks),
            ctypes.c_uint64(1), ctypes.c_uint64(0),
        )  # fmt: skip
        if code:
            raise EmulatorError(f"unicorn rejected the hook {name} with error {code}. Use unicorn 2.1.4, the tested version.")

    def _on_interrupt(self, _uc: Any, number: int, _data: Any) -> None:
        self._interrupt = number
        self._uc.emu_stop()

    def _on_failed_access(self, _uc: Any, kind: int, address: int, size: int, value: int, _data: Any) -> bool:
        """Map a page if a load or store accesses an absent peripheral. Record every other failed access."""
        reads = kind in (self._unicorn.UC_MEM_READ_UNMAPPED, self._unicorn.UC_MEM_READ_PROT)
        writes = kind in (self._unicorn.UC_MEM_WRITE_UNMAPPED, self._unicorn.UC_MEM_WRITE_PROT)
        if address in _PERIPHERALS and (reads or writes):
            page = address & ~(PAGE - 1)

            def absent(offset: int, _value: int, _width: int = 0) -> int:
                return self._on_absent(page + offset)

            self.map_device(page, PAGE, absent, absent)
            return True
        self._access = Access("reads" if reads else "writes" if writes else "executes", address, size)
        return False

    # Running.

    def stop(self) -> None:
        self.hooks.stop_at = 0

    def run(self, until: int) -> Stop:
        """Run until the next stop or the instruction limit. Propagate Python exceptions raised by devices."""
        self.hooks.stop_at = until
        self._interrupt = self._access = None
        if self._watching and not self._watches:
            self._watches = True
            self._add_cache_hooks()
        problem = None
        try:
            self._uc.emu_start(self.next_pc | 1, _NOWHERE)
        except self._unicorn.UcError as error:
            problem = error
        self.next_pc = self.register("PC") & ~1
        if self._error is not None:
            raise self._error
        is_invalid = problem is not None and problem.errno == self._unicorn.UC_ERR_INSN_INVALID
        return Stop(problem, is_invalid, self._access, self._interrupt)

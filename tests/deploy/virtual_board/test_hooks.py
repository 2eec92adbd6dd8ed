"""The emulator's hooks: built without a C++ compiler too, and their struct is Python's."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from ethorch.deploy.virtual_board import unicorn_hooks
from ethorch.support import native


def test_ziglang_builds_them_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "compiler_command", lambda: None)
    built = ctypes.CDLL(str(unicorn_hooks.build()))
    built.ethorch_hooks_size.restype = ctypes.c_uint64
    assert built.ethorch_hooks_size() == ctypes.sizeof(unicorn_hooks.Hooks)


def block(hooks: unicorn_hooks.Hooks, address: int, size: int) -> None:
    """The emulator begins a block."""
    unicorn_hooks.library().ethorch_block(None, ctypes.c_uint64(address), ctypes.c_uint32(size), ctypes.byref(hooks))


def test_instructions_of_two_and_of_four_bytes_are_counted() -> None:
    code = bytes.fromhex("00bfd3f8001000bffff7feff")  # nop, ldr.w, nop, bl
    memory = ctypes.create_string_buffer(code, len(code))
    hooks = unicorn_hooks.Hooks(stop_at=1000, memories=1)
    hooks.memory[0].base, hooks.memory[0].size, hooks.memory[0].bytes = 0x1000, len(code), ctypes.addressof(memory)
    for total in (4, 8):
        block(hooks, 0x1000, len(code))
        assert hooks.instructions == total
    block(hooks, 0x1002, 6)
    assert hooks.instructions == 10
    assert hooks.last_block == 0x1002


def test_the_emulator_is_stopped_where_it_shall_stop() -> None:
    stopped: list[int] = []
    stop = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda _engine: stopped.append(1) or 0)
    hooks = unicorn_hooks.Hooks(instructions=5, stop_at=5, stop=ctypes.cast(stop, ctypes.c_void_p).value)
    block(hooks, 0x1000, 4)
    assert (stopped, hooks.instructions) == ([1], 5)

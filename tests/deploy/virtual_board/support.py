"""The probe firmware, compiled once, and small models for it to run."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import ethorch
from ethorch.deploy import virtual_board
from ethorch.formats.payload import DelegatePayload
from ethorch.npu import Machine, Program, Sources
from ethorch.npu.staging import staging_bytes
from ethorch.program.program import record_of
from ethorch.targets import boards

FIRMWARE = Path(__file__).parent / "firmware"
TARGET = [
    "-target",
    "thumb-freestanding-eabihf",
    "-mcpu=cortex_m33+fp_armv8d16sp",
]  # one for all: its runtime library is built once

# Flags of probe.c.
(
    BY_INTERRUPT, CACHE_ON, CLEAN, INVALIDATE, NO_RESET, NO_ACKNOWLEDGE, WRITE_WHILE_RUNNING, UNKNOWN_REGISTER, RUN_TWICE, 
    BYTE_ACCESS, WRITE_ID,
    END_BY_UART, WILD_READ, WRITE_CODE, UNDEFINED, BREAKPOINT, NO_ENABLE, SLEEP_FOR_EVER, SPIN_FOR_EVER, NO_HANDLER,
    HANDLER_IDLES, SPIN_ON_FLAG, CLEAN_BY_SET, EVENTS, ABSENT_PERIPHERAL, SYSTICK, SEMIHOSTING, FLOATS, PEEK_EARLY, RESET_SYSTEM,
    ARM_STATE, UART_OFF,
) = (1 << bit for bit in range(32))  # fmt: skip

PARAMETERS, STREAM, WEIGHTS, INPUT = 0x70000000, 0x70001000, 0x70100000, 0x70800000
ARENA, STAGING = 0x31000000, 0x31100000


def compiled(folder: Path, source: str = "probe.c", name: str = "probe.elf") -> Path:
    """A program of ``firmware/``, built with ziglang."""
    path = folder / name
    command = [sys.executable, "-m", "ziglang", "cc", *TARGET, "-Os", "-g", "-ffreestanding", "-fno-builtin"]
    command += ["-T", str(FIRMWARE / "link.ld"), "-Wl,-e,Reset_Handler", "-o", str(path), str(FIRMWARE / source)]
    subprocess.run(command, check=True, timeout=900, env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache_folder())})
    return path


def cache_folder() -> Path:
    """Where the compiler keeps its runtime library."""
    from ethorch.support.native import cache_folder as of_ethorch

    return of_ethorch() / "zig"


@dataclass(frozen=True)
class Model:
    """A compiled model with one input, and what the desk gives for it."""

    target: str
    payload: DelegatePayload
    stream: bytes  # without the header
    sent: bytes
    wanted: bytes
    staging: int
    sources: Sources | None

    @property
    def digest(self) -> str:
        """SHA-256 of the commands."""
        import hashlib

        return hashlib.sha256(self.stream).hexdigest()


@cache
def model(target: str) -> Model:
    """A convolution with a relu and an average, compiled for a target."""
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3, stride=2)).eval()
    program = ethorch.compile(network, torch.rand(4, 3, 16, 16).cumsum(-1), target)
    (payload,) = record_of(program).payloads
    whole = Program(payload.commands, payload.weights)
    staging = staging_bytes(whole)
    machine = Machine(whole, payload.scratch_bytes, staging)
    (entry,), (out,) = payload.inputs, payload.outputs
    sent = np.random.default_rng(0).integers(-128, 128, entry.nbytes, np.int8).tobytes()
    machine.region(1)[entry.offset : entry.offset + entry.nbytes] = np.frombuffer(sent, np.uint8)
    machine.run()
    wanted = machine.region(1)[out.offset : out.offset + out.nbytes].tobytes()
    header = whole.header
    return Model(
        target,
        payload,
        payload.commands[header.start : header.stop],
        sent,
        wanted,
        staging,
        (record_of(program).command_sources or {}).get(0),
    )


@dataclass(frozen=True)
class Setup:
    """What the probe is told; a test changes single values."""

    npu: int
    uart: int
    interrupt: int
    flags: int
    stream: int
    stream_bytes: int
    region_config: int
    queue_config: int
    base: tuple[int, ...]
    attributes: tuple[int, ...]
    is_u85: int
    input: int
    input_bytes: int
    input_at: int
    output_at: int
    output_bytes: int
    runs: int = 1

    def packed(self) -> bytes:
        """As the struct in probe.c."""
        words = [
            self.npu,
            self.uart,
            self.interrupt,
            self.flags,
            self.stream,
            self.stream_bytes,
            self.region_config,
            self.queue_config,
        ]
        words += [*self.base, *self.attributes, self.is_u85, self.input, self.input_bytes, self.input_at, self.output_at]
        words += [self.output_bytes, self.runs]
        return struct.pack(f"<{len(words)}I", *words)


def setup(found: Model, which: boards.Board, flags: int = 0, **changes: Any) -> Setup:
    """The probe's parameters for a model on a board, as a driver would choose them."""
    slot, npu = which.npu(found.target)
    entry, out = found.payload.inputs[0], found.payload.outputs[0]
    u85 = npu.family == "u85"
    first = Setup(
        npu=slot.aliases[0],
        uart=which.uart.aliases[0],
        interrupt=slot.interrupt,
        flags=flags,
        stream=STREAM + 32,
        stream_bytes=len(found.stream),
        region_config=0x13 if npu.family != "u65" else 0x1B,  # region 0 external, 1 and 2 SRAM; on u65 region 1 external
        queue_config=2,
        base=(WEIGHTS, ARENA, STAGING, 0, 0, 0, 0, 0),
        attributes=(0, 0, 4, 4),
        is_u85=int(u85),
        input=INPUT,
        input_bytes=entry.nbytes,
        input_at=ARENA + entry.offset,
        output_at=ARENA + out.offset,
        output_bytes=out.nbytes,
    )
    return replace(first, **changes)


def run(elf: Path, found: Model, which: boards.Board, parameters: Setup, **options: Any) -> virtual_board.Run:
    """The probe on a board with a model."""
    header_bytes = len(found.payload.commands) - len(found.stream)
    data = {
        PARAMETERS: parameters.packed(),
        STREAM + 32 - header_bytes: found.payload.commands,
        WEIGHTS: found.payload.weights,
        INPUT: found.sent,
    } | options.pop("more", {})
    options.setdefault("timeout", 60)
    options.setdefault("npu", found.target)
    return virtual_board.run(elf, which, data={at: content for at, content in data.items() if content}, **options)


def said(run: virtual_board.Run, name: str) -> list[int]:
    """The numbers that the probe printed under a name."""
    return [int(line.split()[1], 16) for line in run.text.splitlines() if line.startswith(f"{name} ")]


def checksum(content: bytes) -> int:
    """Adler-32, as the probe computes it."""
    return zlib.adler32(content)


def ids(run: virtual_board.Run) -> list[str]:
    """Ids of the faults."""
    return [fault.id for fault in run.faults]

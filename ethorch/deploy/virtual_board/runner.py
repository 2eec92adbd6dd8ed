"""Run a firmware on a board with one of three engines."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence

from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.engine import Engine
from ethorch.deploy.virtual_board.fvp import FvpEngine
from ethorch.deploy.virtual_board.npu_device import INJECTIONS
from ethorch.deploy.virtual_board.outcome import Run
from ethorch.deploy.virtual_board.qemu import QemuEngine
from ethorch.deploy.virtual_board.settings import Settings
from ethorch.deploy.virtual_board.unicorn_engine import UnicornEngine
from ethorch.npu import Sources
from ethorch.npu.registers import Npu
from ethorch.support.errors import SpecError, unknown_name
from ethorch.targets.boards.description import Board, NpuSlot
from ethorch.targets.boards.loading import load

#: Engines by name: in this process, in QEMU, and on Arm's fixed virtual platform.
ENGINES: Mapping[str, type[Engine]] = {engine.name: engine for engine in (UnicornEngine, QemuEngine, FvpEngine)}
#: Names of the engines.
BACKENDS = tuple(ENGINES)


def run(
    elf: str | os.PathLike[str],
    board: str | os.PathLike[str] | Board = "corstone-300",
    npu: str | Sequence[str] | None = None,
    backend: str = "unicorn",
    *,
    timeout: float = 60.0,
    max_instructions: int | None = None,
    arguments: str = "",
    data: Mapping[int, bytes] | None = None,
    sources: Mapping[str, Sources] | None = None,
    cycles: Mapping[str, int] | None = None,
    inject: Sequence[str] = (),
    on_text: Callable[[str], None] | None = None,
) -> Run:
    """Run a firmware on a board until it ends, and return the outcome.

    The firmware ends with 0x04 on the UART, with semihosting's SYS_EXIT or SYS_EXIT_EXTENDED, or at a limit. It is not trusted: it
    cannot access files, or addresses outside the board's memories.

    Args:
        elf: ELF file.
        board: Name in ``ethorch.targets.boards.names()``, path of a TOML file, or Board.
        npu: NPU, e.g. ``ethos-u55-128``, or a list for a board with several NPU addresses. Default: the first NPU that the board
            lists for each address.
        backend: ``unicorn`` (in this process, all boards, a Cortex-M33's instructions), ``qemu`` (a Cortex-M55 with Helium and
            NVIC, boards with a QEMU machine) or ``fvp`` (Arm's model, boards with an FVP).
        timeout: Seconds on the host, including the simulation of the NPU.
        max_instructions: Limit of CPU instructions. Only unicorn counts them.
        arguments: Command line of the firmware, returned by semihosting's SYS_GET_CMDLINE.
        data: Address -> bytes in memory at the start, such as a separately flashed model.
        sources: SHA-256 of a command stream in hexadecimal -> Vela's schedule (``npu.Sources``), for cycles and operator names.
        cycles: SHA-256 of a command stream -> Vela's cycles, if there is no schedule. Default: estimates from the board's
            multipliers and bandwidths.
        inject: Faults to inject: ``no-interrupt`` (the NPU never raises its line) or ``never-ends`` (its run never ends).
        on_text: Callback for printed text.

    Returns:
        Printed text, end, faults and counts. A failing firmware does not raise. See ``Run.ok`` and ``Run.check``.

    Raises:
        SpecError: the board, NPU, backend or fault to inject is unknown, or the timeout is not positive.
        BoardError: the board's file is invalid.
        ElfError: the file is not a firmware, or does not fit the board.
        EmulatorError: the backend is not installed or does not support this board.
    """
    described = load(board)
    if backend not in BACKENDS:
        raise unknown_name("back end", backend, BACKENDS)
    if wrong := sorted(set(inject) - set(INJECTIONS)):
        raise unknown_name("fault to inject", wrong[0], INJECTIONS)
    if not (isinstance(timeout, (int, float)) and 0 < timeout < math.inf):
        raise SpecError(f"timeout is {timeout!r}; expected a positive number of seconds.")
    if max_instructions is not None and max_instructions < 1:
        raise SpecError(f"max_instructions is {max_instructions}; expected a positive number, or None for no limit.")
    settings = Settings(
        npus=choose_npus(described, npu),
        timeout=timeout,
        max_instructions=max_instructions,
        arguments=arguments,
        data=dict(data or {}),
        sources=dict(sources or {}),
        cycles=dict(cycles or {}),
        inject=tuple(inject),
        on_text=on_text,
    )
    with ENGINES[backend](described, Firmware(elf), settings) as engine:
        return engine.run()


def choose_npus(board: Board, npu: str | Sequence[str] | None) -> tuple[tuple[NpuSlot, Npu], ...]:
    """Return one NPU for each address: the named ones, and the first of each remaining address.

    Raises SpecError for an NPU that the board does not support, and for two at one address.
    """
    named = [] if npu is None else [npu] if isinstance(npu, str) else list(npu)
    npus = [board.npu(name) for name in named]
    places = [slot.base for slot, _ in npus]
    if len(set(places)) != len(places):
        raise SpecError(f"{', '.join(named)} have the same address on board {board.name}; choose one of them.")
    for slot in board.npus:
        if slot.base not in places:
            places.append(slot.base)
            npus.append(board.npu(slot.targets[0]))
    return tuple(npus)

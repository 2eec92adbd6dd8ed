"""Select one of three engines and run firmware."""

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

#: Name -> engine.
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
    """Run firmware on a board, and return the outcome.

    A run ends when the firmware sends 0x04 on the UART, exits through semihosting (SYS_EXIT or SYS_EXIT_EXTENDED), or requests a
    reset. It also ends when the CPU faults or sleeps forever, or when a limit is reached. Firmware cannot access the host's files
    or memory.

    Args:
        board: Name in ``ethorch.targets.boards.names()``, path of a TOML file, or Board.
        npu: NPU, e.g. ``ethos-u55-128``, or a list for a board with several NPU addresses. Default: the first NPU that the board
            lists for each address.
        backend: ``unicorn`` (in this process; all boards; Cortex-M33 instructions), ``qemu`` (Cortex-M55 with Helium and NVIC;
            boards with a QEMU machine) or ``fvp`` (Arm's model; boards with an FVP).
        timeout: Maximum host time in seconds, including the simulation of the NPU.
        max_instructions: Maximum number of CPU instructions (unicorn only).
        arguments: Command line of the firmware, returned by semihosting's SYS_GET_CMDLINE.
        data: Address -> bytes stored there before the run, e.g. a separately flashed model.
        sources: Hexadecimal SHA-256 of a command stream -> Vela's schedule (``npu.Sources``), for cycles and operator names.
        cycles: SHA-256 of a command stream -> Vela's cycles. Default: the cycles in ``sources``, or estimates from the NPU's
            MACs and the board's bandwidths.
        inject: Faults to inject: ``no-interrupt`` (the NPU does not raise interrupts), ``never-ends`` (NPU runs never end).
        on_text: Callback for printed text.

    Returns:
        The outcome. Failing firmware does not raise an exception; see ``Run.ok`` and ``Run.check``.

    Raises:
        SpecError: The board, NPU, backend or fault to inject is unknown, or a limit is not positive.
        BoardError: The board's file is invalid.
        ElfError: ``elf`` is not firmware, or does not fit the board.
        EmulatorError: The backend is not installed or does not support this board.
    """
    described = load(board)
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    if wrong := sorted(set(inject) - set(INJECTIONS)):
        raise unknown_name("fault to inject", wrong[0], INJECTIONS)
    if not (isinstance(timeout, (int, float)) and 0 < timeout < math.inf):
        raise SpecError(f"expected timeout to be a positive number of seconds, got {timeout!r}.")
    if max_instructions is not None and max_instructions < 1:
        raise SpecError(f"expected max_instructions to be a positive number, or None for no limit, got {max_instructions}.")
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
    """Return one NPU for each address: the named NPUs, and the first NPU at each remaining address.

    Raise SpecError if the board does not support a named NPU, or if two named NPUs have the same address.
    """
    named = [] if npu is None else [npu] if isinstance(npu, str) else list(npu)
    npus = [board.npu(name) for name in named]
    places = [slot.base for slot, _ in npus]
    if len(set(places)) != len(places):
        raise SpecError(
            f"expected NPUs at different addresses, but {', '.join(named)} have the same address on board {board.name}. Pass one "
            "NPU for each address."
        )
    for slot in board.npus:
        if slot.base not in places:
            places.append(slot.base)
            npus.append(board.npu(slot.targets[0]))
    return tuple(npus)

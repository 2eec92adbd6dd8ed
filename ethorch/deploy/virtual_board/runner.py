"""Run a firmware on a board, by one of three engines."""

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

#: The engines by name: in this process; in QEMU; on Arm's fixed virtual platform.
ENGINES: Mapping[str, type[Engine]] = {engine.name: engine for engine in (UnicornEngine, QemuEngine, FvpEngine)}
#: Where firmware can run.
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
    """Run a firmware on a board until it ends, and say what it did.

    The firmware ends by 0x04 on the UART, by semihosting's SYS_EXIT or SYS_EXIT_EXTENDED, or at a limit. It is not trusted: it
    reaches no file, and nothing beyond the board's memories.

    Args:
        elf: what the linker wrote.
        board: a name of ``ethorch.targets.boards.names()``, a path of a TOML file, or a Board.
        npu: which NPU the board has, ``ethos-u55-128``; None takes the first that the board may have. For a board with several
            at different addresses, a list; those that are not named are the first of their place.
        backend: ``unicorn``: in this process, every board, a Cortex-M33's instructions; ``qemu``: a real Cortex-M55 with Helium
            and NVIC, boards that QEMU has; ``fvp``: Arm's model, boards that have one.
        timeout: seconds of this computer, the NPU's simulation included.
        max_instructions: of the CPU; None sets no limit. unicorn alone counts them.
        arguments: the firmware's command line, as semihosting's SYS_GET_CMDLINE gives it.
        data: address -> bytes that are in memory when the firmware starts, as a model that is flashed by itself.
        sources: SHA-256 of a command stream, in hexadecimal -> Vela's schedule (``npu.Sources``): cycles and names of operators.
        cycles: SHA-256 of a command stream -> Vela's cycles of it, where there is no schedule. Without both the cycles are
            the board's: multiplications and bandwidths.
        inject: faults to bring about: ``no-interrupt``: the NPU never raises its line; ``never-ends``: its run never ends.
        on_text: called with what the firmware prints, as it comes.

    Returns:
        What it printed, how it ended, what was found wrong, and counts. A firmware that fails is no exception: see ``Run.ok``
        and ``Run.check``.

    Raises:
        SpecError: no such board, NPU, back end or fault to inject; a timeout that is no positive number.
        BoardError: the board's file is wrong.
        ElfError: the file is no firmware, or does not fit the board.
        EmulatorError: the back end is not installed, or cannot be this board.
    """
    described = load(board)
    if backend not in BACKENDS:
        raise unknown_name("back end", backend, BACKENDS)
    if wrong := sorted(set(inject) - set(INJECTIONS)):
        raise unknown_name("fault to inject", wrong[0], INJECTIONS)
    if not (isinstance(timeout, (int, float)) and 0 < timeout < math.inf):
        raise SpecError(f"timeout is {timeout!r}; it is a positive number of seconds.")
    if max_instructions is not None and max_instructions < 1:
        raise SpecError(f"max_instructions is {max_instructions}; it is a positive number, or None for no limit.")
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
    """The NPUs of a run, one for each address: those that are named first, then the first of each place that is left.

    SpecError for a name that the board cannot have, and for two at one address.
    """
    named = [] if npu is None else [npu] if isinstance(npu, str) else list(npu)
    found = [board.npu(name) for name in named]
    places = [slot.base for slot, _ in found]
    if len(set(places)) != len(places):
        raise SpecError(f"{', '.join(named)} have one place on board {board.name}, which has one of them.")
    for slot in board.npus:
        if slot.base not in places:
            places.append(slot.base)
            found.append(board.npu(slot.targets[0]))
    return tuple(found)

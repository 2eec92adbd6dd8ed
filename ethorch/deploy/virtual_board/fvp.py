"""Run firmware on Arm's fixed virtual platforms (FVPs).

An FVP stops when the firmware sends 0x04 on the UART. Its exit status is not reliable, so the printed text determines the outcome.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.engine import Engine
from ethorch.deploy.virtual_board.outcome import End
from ethorch.deploy.virtual_board.settings import Settings
from ethorch.support.errors import EmulatorError
from ethorch.targets.boards.description import Board

#: Download page. Only Arm may distribute FVPs.
SOURCE = "https://developer.arm.com/Tools%20and%20Software/Fixed%20Virtual%20Platforms/IoT%20FVPs"
_GRACE = 20.0  # seconds to start and to end an FVP, in addition to the timeout of the FVP
_CYCLES = re.compile(
    r"(?:NPU|PMU|PMCCNTR)\b[^\n\d]*?\bcycles?\b[^\n\d]*(\d+)|\b(\d+) (?:NPU cycles|cycles of the NPU)", re.IGNORECASE
)
MOST_TEXT_BYTES = 1 << 24


@dataclass(frozen=True)
class Layout:
    """The parameter names of an FVP.

    Attributes:
        npu, cpu, uart: Prefixes of parameters.
        off: Parameters that disable windows and terminals.
    """

    npu: str
    cpu: str
    uart: str
    off: tuple[str, ...]


_SSE_300 = Layout(
    "ethosu",
    "cpu0",
    "mps3_board.uart0",
    ("mps3_board.visualisation.disable-visualisation=1", "mps3_board.telnetterminal0.start_telnet=0"),
)
_SSE_320 = Layout(
    "mps4_board.subsystem.ethosu",
    "mps4_board.subsystem.cpu0",
    "mps4_board.uart0",
    (
        "mps4_board.visualisation.disable-visualisation=1",
        "vis_hdlcd.disable_visualisation=1",
        "mps4_board.telnetterminal0.start_telnet=0",
    ),
)
#: Prefix of the FVP's command -> layout.
LAYOUTS = {"FVP_Corstone_SSE-300": _SSE_300, "FVP_Corstone_SSE-320": _SSE_320}


def find_command(board: Board, family: str) -> str:
    """Return the name of the FVP for a board and an NPU family. Raise EmulatorError if no such FVP exists."""
    name = board.fvp.get(family)
    if name is None:
        have = ", ".join(f"{key}: {value}" for key, value in board.fvp.items()) or "none"
        raise EmulatorError(f"board {board.name} has no FVP for Ethos-{family.upper()} (available: {have}). Use backend='unicorn'.")
    return name


def find(name: str) -> str:
    """Return the path of an FVP. Raise EmulatorError if the FVP is not on PATH."""
    path = shutil.which(name)
    if path is None:
        raise EmulatorError(
            f"{name} is not on PATH. Download it free of charge from Arm ({SOURCE}), or use backend='unicorn' with the same ELF "
            "file."
        )
    return path


def arguments(name: str, elf: Path, macs: int, timeout: float, uart_file: Path, settings: Settings, folder: Path) -> list[str]:
    """Return the command-line arguments of an FVP.

    Args:
        uart_file: File for the printed text.
        folder: Folder to write ``settings.data`` to. Semihosting can access only this folder.
    """
    layout = next((layout for start, layout in LAYOUTS.items() if name.startswith(start)), None)
    if layout is None:
        raise EmulatorError(f"expected an FVP whose name starts with {' or '.join(LAYOUTS)}, got {name}.")
    parameters = [f"{layout.npu}.num_macs={macs}", *layout.off, f"{layout.uart}.out_file={uart_file}"]
    parameters += [f"{layout.uart}.unbuffered_output=1", f"{layout.uart}.shutdown_on_eot=1"]
    parameters += [f"{layout.cpu}.semihosting-{key}" for key in ("enable=1", "stack_base=0", "heap_limit=0", f"cwd={folder}")]
    if settings.arguments:
        parameters.append(f"{layout.cpu}.semihosting-cmd_line={settings.arguments}")
    result = [word for parameter in parameters for word in ("-C", parameter)]
    result += ["-a", str(elf)]
    for number, (address, content) in enumerate(settings.data.items()):
        path = folder / f"data{number}.bin"
        path.write_bytes(content)
        result += ["--data", f"{path}@{address:#x}"]
    return [*result, "--timelimit", str(math.ceil(timeout))]


def environment(path: str) -> dict[str, str]:
    """Return the host's environment variables, plus the path of the FVP's Python libraries (Corstone-320)."""
    variables = dict(os.environ)
    libraries = Path(path).resolve().parent
    for folder in (parent / "python" / "lib" for parent in libraries.parents):
        if folder.is_dir():
            variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), variables.get("LD_LIBRARY_PATH"))))
            break
    return variables


class FvpEngine(Engine):
    """An engine that runs firmware on Arm's FVP."""

    name = "fvp"

    def __init__(self, board: Board, firmware: Firmware, settings: Settings) -> None:
        super().__init__(board, firmware, replace(settings, npus=settings.npus[:1]))
        _, npu = settings.npus[0]
        self._command, self._macs = find_command(board, npu.family), npu.macs
        if settings.inject or settings.max_instructions is not None:
            raise EmulatorError("an FVP does not support inject or max_instructions. Use backend='unicorn', or omit both.")
        self._path = find(self._command)
        self.expected_cycles = sum(settings.cycles.values()) or None

    def execute(self) -> End:
        name, timeout = self._command, self.settings.timeout
        with tempfile.TemporaryDirectory(prefix="ethorch-fvp-") as temporary:
            folder = Path(temporary)
            uart = folder / "uart0.txt"
            words = arguments(name, self.firmware.path.resolve(), self._macs, timeout, uart, self.settings, folder)
            code, printed_by_fvp, late = _execute([self._path, *words], environment(self._path), timeout + _GRACE, folder)
            printed = uart.read_bytes()[:MOST_TEXT_BYTES] if uart.is_file() else b""
        is_late = self.seconds_left() <= 0
        self.serial.put(printed)
        if not printed and code:
            raise EmulatorError(
                f"{name} exited with status {code}, and the firmware printed nothing. Output of the FVP: "
                f"{printed_by_fvp[-1000:].strip()}"
            )
        for line in printed_by_fvp.splitlines():
            if line.startswith(("Warning", "Error")):
                self.note(f"{name}: {line}")
        self.measured_cycles = read_cycles(self.serial.text)
        if late or (is_late and not self.serial.ended):
            return End("timeout")
        return End("eot") if self.serial.ended or code == 0 else End("exit", code)


def read_cycles(text: str) -> int | None:
    """Return the last PMU cycle count in the printed text (e.g. ``NPU cycles: 1234``), or None if not found."""
    counts = _CYCLES.findall(text)
    return int(next(filter(None, counts[-1]))) if counts else None


def _execute(command: list[str], variables: dict[str, str], timeout: float, folder: Path) -> tuple[int, str, bool]:
    """Run a command. Return (exit status, output, True if killed after the timeout)."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise EmulatorError(f"cannot start {command[0]}: {error.strerror}.") from None
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output.decode(errors="replace"), False
    except subprocess.TimeoutExpired:
        _kill(process)
        output, _ = process.communicate()
        return process.returncode, output.decode(errors="replace"), True
    finally:
        if process.poll() is None:
            _kill(process)
            process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()

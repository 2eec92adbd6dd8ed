"""Subcommands of boards: boards, run-firmware, calibrate-board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli.answers import Answer, Status
from ethorch.cli.command import command
from ethorch.support import tables
from ethorch.support.wording import counted

if TYPE_CHECKING:
    from rich.console import Group

    from ethorch.deploy.virtual_board import Run
    from ethorch.program.calibrate_board import Calibration
    from ethorch.targets.boards import Board as BoardType

PANEL = "Firmware"
Board = Annotated[
    str, typer.Option("--board", "-b", help="Name of `ethorch boards`, or a TOML file of your own.", metavar="NAME|FILE")
]

_NO_FIT = 0.5  # error of a calibration that is worth a word


@command("boards", PANEL)
def boards(
    board: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE", help="One of them, whole; a file of yours is checked.")
    ] = None,
) -> Answer:
    """The boards ethorch knows: NPUs, memories, what the NPU sees of them, and where each number comes from."""
    from ethorch.targets.boards import load, names

    found = [load(name) for name in ([board] if board else names())]
    return Answer([_described(each, board is not None) for each in found], lambda: _listed(found, board is not None))


def _described(board: BoardType, whole: bool) -> dict[str, Any]:
    from dataclasses import asdict

    if not whole:
        return {"name": board.name, "title": board.title, "targets": list(board.targets)}
    data = asdict(board)
    data["path"] = str(board.path)
    return data


def _listed(found: list[BoardType], whole: bool) -> Group:
    from rich.console import Group

    from ethorch.targets.boards.measured import MEASURED
    from ethorch.targets.boards.memory_roles import roles

    parts: list[Any] = []
    for board in found:
        parts.append(f"{board.name}: {board.title}")
        parts.append(f"  {board.cpu.core}, {board.cpu.clock_hz / 1e6:g} MHz; {', '.join(board.targets)}")
        if not whole:
            continue
        table = tables.table()
        for name in ("memory", "kind", "address", "KiB", "NPU's ports", "MB/s", "source"):
            table.add_column(name)
        for memory in board.memories:
            speed = "" if memory.bytes_per_second is None else f"{memory.bytes_per_second / 1e6:g}"
            speed += " assumed" if memory.is_assumed("bytes_per_second") else ""
            addresses, ports = ", ".join(f"{base:#010x}" for base in memory.bases), ", ".join(memory.npu_ports) or "none"
            source = memory.sources["size_bytes"]
            table.add_row(memory.name, memory.kind, addresses, f"{memory.size_bytes // 1024}", ports, speed, source)
        parts += [table]
        for slot in board.npus:
            parts.append(
                f"  Ethos-{slot.family.upper()} at {slot.base:#010x}, interrupt {slot.interrupt}, {slot.clock_hz / 1e6:g} MHz: "
                f"{slot.sources['base']}"
            )
            used = roles(board, slot)
            parts.append(f"  weights in {used.constants.name}, feature maps in {used.feature_maps.name}: {used.memory_mode}")
        parts += [
            f"  {row.network}: {row.milliseconds:g} ms measured, {row.ratio:.1f} times the estimate ({row.source})"
            for row in MEASURED
            if row.board == board.name
        ]
    return Group(*parts)


@command("run-firmware", PANEL)
def run_firmware(
    elf: Annotated[Path, typer.Argument(metavar="FILE.elf", help="What the linker wrote.")],
    board: Board = "corstone-300",
    npu: Annotated[str | None, typer.Option("--npu", "-n", help="Default: the first that the board may have.")] = None,
    backend: Annotated[
        str, typer.Option(help="unicorn: in this process; qemu: a Cortex-M55 with Helium; fvp: Arm's model.")
    ] = "unicorn",
    timeout: Annotated[float, typer.Option(help="Seconds that the run may take here.")] = 60.0,
    arguments: Annotated[str, typer.Option(help="The firmware's command line (semihosting).")] = "",
    trace: Annotated[Path | None, typer.Option(help="Write the run for Perfetto or Chrome.", metavar="FILE.json")] = None,
) -> Answer:
    """Run firmware on a virtual board, the NPU simulated bit for bit; what silicon would punish is named."""
    from ethorch.deploy.virtual_board import run

    if trace is not None:
        from ethorch.program.saving import check_folder

        check_folder(trace)
    found = run(elf, board, npu, backend, timeout=timeout, arguments=arguments)
    if trace is not None:
        found.trace(trace)
    return Answer(found.to_json(), lambda: _told(found), Status.DONE if found.ok else Status.COULD_NOT)


def _told(run: Run) -> str:
    """What it printed, then a line on how it ended, then what was found wrong."""
    counts = []
    if run.instructions is not None:
        counts.append(f"{run.instructions} instructions of the CPU")
    if run.npu_cycles is not None:
        by = " and ".join(sorted({inference.estimated_by for inference in run.inferences} - {""}))
        counts.append(
            f"{counted(len(run.inferences), 'NPU run')} of {run.npu_cycles} cycles" + (f", estimated by {by}" if by else "")
        )
    if run.measured_cycles is not None:
        counts.append(f"{run.measured_cycles} NPU cycles by the firmware's PMU")
    code = "" if run.exit_code is None else f" with code {run.exit_code}"
    lines = [
        run.text.rstrip(),
        f"{run.board}, {run.npu}, {run.backend}: ended by {run.ended}{code}; {'; '.join(counts) or 'no counts'}.",
    ]
    for region, row in run.bytes_by_region.items():
        lines.append(f"region {region}: {row['read']} bytes read, {row['written']} written by the NPU")
    lines += [f"FAULT: {fault}" for fault in run.faults]
    lines += [f"note: {note}" for note in run.notes]
    return "\n".join(lines)


@command("calibrate-board", PANEL)
def calibrate_board(
    board: Annotated[str, typer.Argument(metavar="NAME|FILE", help="The board to start from.")],
    measured: Annotated[
        Path,
        typer.Option(
            "--measured",
            help="CSV with the columns program,milliseconds, or TOML with [[measured]] tables: .pte files and what a call took.",
            metavar="FILE",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new board.", metavar="FILE.toml")],
) -> Answer:
    """Fit a board's bandwidths to times that you measured on it, and write it as a board of your own."""
    from ethorch.formats.files import write_whole
    from ethorch.program.calibrate_board import calibrate, read_measured
    from ethorch.targets.boards import load
    from ethorch.targets.boards.loading import parse

    found = calibrate(load(board), read_measured(measured))
    text = found.to_toml(output.stem.lower()).encode()
    parse(text, str(output))  # what is written can be read
    write_whole(output, text)
    return Answer({**found.to_json(), "output": str(output)}, lambda: _calibrated(found, output))


def _calibrated(found: Calibration, output: Path) -> str:
    lines = [
        f"{row.program}: {row.measured_ms:.3f} ms measured, {row.before_ms:.3f} before, {row.after_ms:.3f} now"
        for row in found.programs
    ]
    for name, fitted in found.bytes_per_second.items():
        had = found.board.memory(name).bytes_per_second
        lines.append(f"{name}: {fitted / 1e6:,.0f} MB/s" + ("" if had is None else f" instead of {had / 1e6:,.0f}"))
    if found.error > _NO_FIT:
        lines.append("No bandwidths explain these times: are they milliseconds, of one call each, of these programs?")
    lines.append(f"error {100 * found.error:.1f} %, before {100 * found.error_before:.1f} %; wrote {output}")
    return "\n".join(lines)

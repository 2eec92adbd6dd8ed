"""The subcommand ``boards``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli.answers import Answer
from ethorch.cli.command import command, option
from ethorch.support import tables
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Group

    from ethorch.program.calibrate_board import Calibration
    from ethorch.targets.boards import Board as BoardType

PANEL = "Targets, boards and operators"

_NO_FIT = 0.5  # maximum error of a fit without a warning


@command("boards", PANEL)
def boards(
    board: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE]", help="Board to print in full; a TOML file is also checked.")
    ] = None,
    fit: Annotated[
        Path | None,
        option(
            help="Fit the board's bandwidths to measured times: CSV with program,milliseconds, or TOML with [[measured]].",
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[Path | None, option("--output", "-o", help="File for the fitted board [none].", metavar="FILE.toml")] = None,
) -> Answer:
    """List boards, or print one board's NPUs, memories and clocks with the source of each figure."""
    if fit is not None:
        if board is None:
            raise SpecError("--fit requires a board to start from. Pass NAME or FILE.")
        return _fit(board, fit, output)
    if output is not None:
        raise SpecError("--output requires --fit. Add --fit FILE with measured times.")
    from ethorch.targets.boards import load, names

    descriptions = [load(name) for name in ([board] if board else names())]
    return Answer(
        [_describe(each, board is not None) for each in descriptions], lambda: _list_boards(descriptions, board is not None)
    )


def _describe(board: BoardType, in_full: bool) -> dict[str, Any]:
    from dataclasses import asdict

    if not in_full:
        return {"name": board.name, "title": board.title, "targets": list(board.targets)}
    data = asdict(board)
    data["path"] = str(board.path)
    return data


def _list_boards(descriptions: list[BoardType], in_full: bool) -> Group:
    from rich.console import Group

    from ethorch.targets.boards.measured import MEASURED
    from ethorch.targets.boards.memory_roles import roles

    parts: list[Any] = []
    for board in descriptions:
        parts.append(f"{board.name}: {board.title}")
        parts.append(f"  {board.cpu.core}, {board.cpu.clock_hz / 1e6:g} MHz; {', '.join(board.targets)}")
        if not in_full:
            continue
        table = tables.table()
        for name in ("memory", "kind", "address", "KiB", "NPU ports", "MB/s", "source"):
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
            f"  {row.network}: measured {row.milliseconds:g} ms, {row.ratio:.1f} times the estimate ({row.source})"
            for row in MEASURED
            if row.board == board.name
        ]
    return Group(*parts)


def _fit(board: str, measured: Path, output: Path | None) -> Answer:
    from ethorch.formats.files import write_whole
    from ethorch.program.calibrate_board import calibrate, read_measured
    from ethorch.targets.boards import load
    from ethorch.targets.boards.loading import parse

    calibration = calibrate(load(board), read_measured(measured))
    if output is not None:
        text = calibration.to_toml(output.stem.lower()).encode()
        parse(text, str(output))  # check that the text is valid before writing it
        write_whole(output, text)
    data = {**calibration.to_json(), "output": None if output is None else str(output)}
    return Answer(data, lambda: _describe_fit(calibration, output))


def _describe_fit(calibration: Calibration, output: Path | None) -> str:
    lines = [
        f"{row.program}: measured {row.measured_ms:.3f} ms, estimated {row.before_ms:.3f} ms before and {row.after_ms:.3f} ms after"
        for row in calibration.programs
    ]
    for name, rate in calibration.bytes_per_second.items():
        had = calibration.board.memory(name).bytes_per_second
        lines.append(f"{name}: {rate / 1e6:,.0f} MB/s" + ("" if had is None else f" instead of {had / 1e6:,.0f} MB/s"))
    if calibration.error > _NO_FIT:
        lines.append(
            "No bandwidths match these times. Check that each time is in milliseconds and for one call of the named program."
        )
    lines.append(f"error: {calibration.error_before:.1%} before the fit, {calibration.error:.1%} after")
    lines += [] if output is None else [f"Saved {output}"]
    return "\n".join(lines)

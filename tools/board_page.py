"""Write docs/boards.md: the boards with the source of each number, and measured times beside estimates."""

from __future__ import annotations

from ethorch.targets.boards import Board, Memory, load, names
from ethorch.targets.boards.description import Sourced
from ethorch.targets.boards.measured import COMMAND, MEASURED, UNESTIMATED, spread
from ethorch.targets.boards.memory_roles import roles

_NUMBERS = ("size_bytes", "bytes_per_second", "read_latency_cycles", "write_latency_cycles", "burst_bytes", "outstanding", "base")


def page(written_by: str) -> str:
    """Return the page. ``written_by`` is the comment that names the generator."""
    boards = [load(name) for name in names()]
    lines = [
        "# Boards",
        written_by,
        "",
        "This page lists the boards that `ethorch compile MODEL --board NAME` and `ethorch.compile(..., board=)` support. A",
        "board sets the target, Vela's clock and bandwidths, and the limits of RAM and flash. `ethorch boards NAME` prints one.",
        "Numbers without a public source are *assumed*.",
        "",
        "A board of your own is one file: copy `ethorch/targets/boards/generic.toml`, correct it, and pass its path. Errors name",
        "the line and the key. `ethorch boards my.toml --fit times.csv -o better.toml` fits the bandwidths to measured times",
        "(columns `program,milliseconds`) and prints the remaining error.",
        "",
        "Each delegate in the `.pte` records its clock and bandwidths (about 600 bytes). Kinds `flash` and `mram` are Vela's",
        "`OffChipFlash`. Latencies are cycles of the NPU.",
        "",
        "Vela derives the port width of a U55 from the name of the ini section: 8 bytes if it starts with `Ethos_U55`, else 16.",
        "ethorch renames sections accordingly, also those of your ini files. If Vela itself reads a section with another name, all",
        "memories of a U55 appear twice as fast.",
        "",
        "| board | description | NPU | NPU, MHz | CPU | CPU, MHz | weights in | feature maps in | memory mode |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for board in boards:
        for slot in board.npus:
            used = roles(board, slot)
            npu = f"{slot.family.upper()}, {' or '.join(map(str, sorted(slot.macs)))} MACs"
            cells = (
                f"[`{board.name}`](#{_anchor(board)})", board.title, npu, f"{slot.clock_hz / 1e6:g}", board.cpu.core,
                f"{board.cpu.clock_hz / 1e6:g}", used.constants.name, used.feature_maps.name, used.memory_mode,
            )  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    lines += _measurement_lines()
    for board in boards:
        lines += _board(board)
    return "\n".join(lines) + "\n"


def _measurement_lines() -> list[str]:
    seen = spread("")
    assert seen is not None
    lines = [
        "",
        "## Estimates and measurements",
        "",
        f"Published times are **{seen.low:.1f} to {seen.high:.1f} times** the estimate if firmware drives the NPU ({seen.count}",
        "figures), and about 20 times if Linux does, with unknown memory. The five networks of the E8's U85 have the order of",
        "their estimates; other boards have one published network each. Use estimates to rank networks, and",
        "`ethorch boards --fit` to predict times on a board.",
        "",
        f"`{COMMAND}` computes ethorch's estimates. Its weights have a Laplace distribution and compress less than trained",
        "ones. Publishers do not describe all conditions of their measurements.",
        "",
        "| network | NPU | board | measured, ms | estimate, ms | measured / estimate | estimated by | measured by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in MEASURED:
        cells = (
            row.network, row.target.removeprefix("ethos-"), row.board, f"{row.milliseconds:g}", f"{row.estimate_ms:g}",
            f"{row.ratio:.2f}", row.estimated_by, row.source,
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Published measurements without an estimate:",
        "",
        "| network | NPU | location | measured | reason | measured by |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for unestimated in UNESTIMATED:
        words = (
            unestimated.network,
            unestimated.target.removeprefix("ethos-"),
            unestimated.where,
            unestimated.figure,
            unestimated.why,
            unestimated.source,
        )
        lines.append("| " + " | ".join(words) + " |")
    return lines


def _anchor(board: Board) -> str:
    return board.name.replace(".", "")


def _board(board: Board) -> list[str]:
    lines = ["", f"## {board.name}", "", f"{board.title}.", ""]
    if board.name == "generic":
        return [*lines, "All numbers are assumed. Use it as a template for a board of your own."]
    lines += [f"- CPU: {board.cpu.core}, {board.cpu.clock_hz / 1e6:g} MHz ({board.cpu.sources['clock_hz']})"]
    for slot in board.npus:
        macs, sources = " or ".join(map(str, sorted(slot.macs))), slot.sources
        lines += [
            f"- Ethos-{slot.family.upper()}",
            f"    - {macs} MACs ({sources['macs']})",
            f"    - {slot.clock_hz / 1e6:g} MHz ({sources['clock_hz']})",
            f"    - registers at `{slot.base:#010x}` ({sources['base']})",
            f"    - interrupt {slot.interrupt} ({sources['interrupt']})",
        ]
    lines += ["", "| memory | kind | at | KiB | NPU's ports | MB/s | latency, cycles | sources |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    return lines + [_memory(memory) for memory in board.memories]


def _memory(memory: Memory) -> str:
    speed = "" if memory.bytes_per_second is None else f"{memory.bytes_per_second / 1e6:g}"
    latency = "" if memory.read_latency_cycles is None else f"{memory.read_latency_cycles:g}"
    addresses = ", ".join(f"`{base:#010x}`" for base in memory.bases)
    cells = (
        memory.name, memory.kind, addresses, f"{memory.size_bytes // 1024}", ", ".join(memory.npu_ports) or "none", speed, latency,
        _sources(memory),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _sources(part: Sourced) -> str:
    """Return each source once, with its keys if there are several sources."""
    by_source: dict[str, list[str]] = {}
    for key in _NUMBERS:
        if key in part.sources:
            by_source.setdefault(part.sources[key], []).append(key)
    if len(by_source) == 1:
        return next(iter(by_source))
    return "; ".join(f"{', '.join(keys)}: {source}" for source, keys in by_source.items())

"""docs/boards.md: the boards, each number with its source, and measured times beside estimates."""

from __future__ import annotations

from ethorch.targets.boards import Board, Memory, load, names
from ethorch.targets.boards.description import Sourced
from ethorch.targets.boards.measured import COMMAND, MEASURED, UNESTIMATED, spread
from ethorch.targets.boards.memory_roles import roles

_NUMBERS = ("size_bytes", "bytes_per_second", "read_latency_cycles", "write_latency_cycles", "burst_bytes", "outstanding", "base")


def page(written_by: str) -> str:
    """The page; ``written_by`` is the comment that says how it was made."""
    found = [load(name) for name in names()]
    lines = [
        "# Boards",
        written_by,
        "",
        '`ethorch compile MODEL --board NAME` or `ethorch.compile(..., board="NAME")` takes the target, clock and bandwidths',
        "for Vela, and the limits of RAM and flash from a row of this page. `ethorch boards NAME` prints one. What nobody has",
        "published is *assumed*.",
        "",
        "A board of your own is one file: copy `ethorch/targets/boards/generic.toml`, correct it, and give its path. A wrong file",
        "is refused with line and key. `ethorch boards my.toml --fit times.csv -o better.toml` fits its",
        "bandwidths to times that you measured (columns `program,milliseconds`), and says the error that stays.",
        "",
        "What Vela is told becomes a part of each delegate in the `.pte` (some 600 bytes): a file says for which clock and",
        "bandwidths it was planned, on any computer. Kinds `flash` and `mram` are Vela's `OffChipFlash`. Latencies are cycles",
        "of the NPU.",
        "",
        "Vela tells the width of a U55's ports by the name of the section: 8 bytes where it begins with `Ethos_U55`, else 16.",
        "ethorch gives it that name, for boards and for ini files of yours; an ini file with another name, given to Vela itself,",
        "makes all memories of a U55 twice as fast as they are.",
        "",
        "| board | what | NPU | NPU, MHz | CPU | CPU, MHz | weights in | feature maps in | memory mode |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for board in found:
        for slot in board.npus:
            used = roles(board, slot)
            npu = f"{slot.family.upper()}, {' or '.join(map(str, sorted(slot.macs)))} MACs"
            cells = (
                f"[`{board.name}`](#{_anchor(board)})", board.title, npu, f"{slot.clock_hz / 1e6:g}", board.cpu.core,
                f"{board.cpu.clock_hz / 1e6:g}", used.constants.name, used.feature_maps.name, used.memory_mode,
            )  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    lines += _measured()
    for board in found:
        lines += _board(board)
    return "\n".join(lines) + "\n"


def _measured() -> list[str]:
    seen = spread("")
    lines = [
        "",
        "## How far estimates are from boards",
        "",
        f"Published times beside estimates; ours by `{COMMAND}`. Its networks have weights drawn from a Laplace distribution,",
        "which compress less than trained ones; a call's conditions are known as far as the publisher tells. Where firmware drives",
        f"the NPU, silicon took **{seen.low:.1f} to {seen.high:.1f} times** the estimate ({seen.count} figures), and the five",
        "networks of the E8's U85 come in the estimate's order; of the other boards one network each is known. Through Linux,",
        "on memory that nobody describes,",
        "it was some 20 times. Estimates rank networks; they do not predict a board: `ethorch boards` with `--fit` brings them "
        "nearer.",
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
        "Published, and nothing can be put beside it:",
        "",
        "| network | NPU | where | measured | why there is no estimate | measured by |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for other in UNESTIMATED:
        words = (other.network, other.target.removeprefix("ethos-"), other.where, other.figure, other.why, other.source)
        lines.append("| " + " | ".join(words) + " |")
    return lines


def _anchor(board: Board) -> str:
    return board.name.replace(".", "")


def _board(board: Board) -> list[str]:
    lines = ["", f"## {board.name}", "", f"{board.title}.", ""]
    if board.name == "generic":
        return [*lines, "All numbers are assumed: it is a start for a board of your own."]
    lines += [f"- CPU: {board.cpu.core}, {board.cpu.clock_hz / 1e6:g} MHz ({board.cpu.sources['clock_hz']})"]
    for slot in board.npus:
        macs, said = " or ".join(map(str, sorted(slot.macs))), slot.sources
        lines.append(
            f"- Ethos-{slot.family.upper()}, {macs} MACs ({said['macs']}), {slot.clock_hz / 1e6:g} MHz ({said['clock_hz']}), at "
            f"`{slot.base:#010x}` ({said['base']}), interrupt {slot.interrupt} ({said['interrupt']})"
        )
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
    """Each source once, with the keys it is for where there are several."""
    by_source: dict[str, list[str]] = {}
    for key in _NUMBERS:
        if key in part.sources:
            by_source.setdefault(part.sources[key], []).append(key)
    if len(by_source) == 1:
        return next(iter(by_source))
    return "; ".join(f"{', '.join(keys)}: {source}" for source, keys in by_source.items())

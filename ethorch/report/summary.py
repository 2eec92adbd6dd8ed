"""The answer to "what became of my model?", drawn from the plain data of ``Program.to_json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ethorch.figures.estimate import CALLS, COPIES, END_TRANSPOSES
from ethorch.figures.layer import CPU, NPU
from ethorch.lower.partition_report import placed, refusal_texts
from ethorch.support import tables
from ethorch.support.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

Data = Mapping[str, Any]
_NO_LAYERS = (COPIES, CALLS)
_LOUD = 0.02  # share of the NPU's cycles


def summary(data: Data) -> RenderableType:
    """Head line, figures, budgets, and what is on the CPU with reasons.

    Args:
        data: of ``Program.to_json``.
    """
    from rich.console import Group

    figures = tables.table(show_header=False)
    for name, value, note in rows(data):
        figures.add_row(name, value, note)
    parts: list[Any] = [head(data), "", figures]
    if data["budgets"]:
        budgets = tables.table()
        for name in ("budget", "limit", "found", ""):
            budgets.add_column(name, justify="left" if name in ("budget", "") else "right")
        for row in data["budgets"]:
            found = "equal" if row["found"] is None and row["holds"] else _figure(row["found"])  # SQNR of equal outputs
            verdict = "unknown" if row["holds"] is None else "holds" if row["holds"] else "does NOT hold"
            budgets.add_row(row["name"], _figure(row["limit"]), found, verdict)
        parts += ["", budgets]
    parts += [line for text in refusal_texts((*data["cpu"], *data["without_kernel"])) for line in ("", text)]
    return Group(*parts)


def head(data: Data) -> str:
    """``5 of 5 PyTorch operators on ethos-u55-128 in 1 delegate.``"""
    operators = data["operators"]
    count = operators["delegates"]
    if operators["npu"] is None:
        kernels = counted(operators["cpu"], "kernel")
        return (
            f"{counted(count, 'delegate')} on {data['target'] or 'no NPU'}, {kernels} on the CPU, quantize and dequantize included."
        )
    of_method = f"Method {data['method']} (also in the file: {', '.join(others)}): " if (others := _others(data)) else ""
    return of_method + f"{placed(operators['npu'], operators['cpu'], data['target'], count)}."


def _others(data: Data) -> list[str]:
    """The file's entry points that the data are not about."""
    return [name for name in data.get("methods", ()) if name != data["method"]]


def rows(data: Data) -> Iterator[tuple[str, str, str]]:
    """(name, figure, note) of each figure that is known."""
    if data["total_cycles"] is not None:
        yield "cycles of the NPU", f"{data['total_cycles']:,}", "estimated by Vela" + _of_it(data, NPU, 1)
        if data["cpu_cycles"]:
            yield (
                "cycles of the CPU",
                f"{data['cpu_cycles']:,}",
                "estimated for a Cortex-M55, by the rates of ethorch.figures.RATES" + _of_it(data, CPU, 0),
            )
        if data.get("overhead_cycles"):
            yield "beside operators", f"{data['overhead_cycles']:,}", "cycles of the CPU" + _of_it(data, CPU, 0, layers=False)
        yield (
            "time",
            f"{data['milliseconds']:.3f} ms",
            f"{_clocks(data)}; {data['inferences_per_second']:,.1f} a second",
        )
    yield from _layout(data)
    board = data.get("board")
    if board and data["total_cycles"] is not None:
        seen = board["spread"]
        note = f"published figures of {seen['of']}: {seen['count']}"
        yield "measured boards", f"{seen['low']:.1f} to {seen['high']:.1f} times", f"that time; {note}"
        if board["assumed"]:
            numbers = (entry.split(": ")[:2] for entry in board["assumed"])  # "flash: bytes_per_second: assumed: ..."
            note = ", ".join(f"{key} of {memory}" for memory, key in numbers)
            yield "assumed", counted(len(board["assumed"]), "number"), f"behind that time: {note}"
    if data["mac_count"]:
        share = data["util_mac_percentage"]
        yield (
            "multiply-accumulates",
            f"{data['mac_count']:,}",
            "" if share is None else f"{share:.1f} % of what the NPU could do in that time",
        )
    yield "RAM", kib(data["ram_bytes"]), f"of the whole application; of it {kib(data['sram_bytes'])} are the NPU's feature maps"
    yield "flash", kib(data["flash_bytes"]), "the .pte; code comes on top"
    accuracy = data["accuracy"]
    if accuracy:
        figure = "equal" if accuracy["sqnr_db"] is None else f"{accuracy['sqnr_db']:.1f} dB"
        yield "SQNR", figure, f"NPU against the float model, {counted(accuracy['samples'], 'sample')}"
    verification = data.get("verification")
    if verification and verification["delegates"]:
        yield "Verified", f"{verification['equal']} of {verification['delegates']}", "delegates equal the TOSA reference"
        for row in verification["unchecked"]:
            yield "NOT VERIFIED", f"{row['method']} {row['delegate']}", row["reason"]
        for operator in verification["repairs"]:
            yield "Repaired", "1 copy", f"before {operator}, without which Vela's commands are wrong"
    for side in ("inputs", "outputs"):
        for number, info in enumerate(data[side]):
            codes = info["codes"]
            meaning = "" if codes is None else f"value = (code - {codes['zero_point']}) * {codes['scale']:.6g}"
            yield f"{side[:-1]} {number}", f"{info['dtype']}{list(info['shape'])}", meaning


def _layout(data: Data) -> Iterator[tuple[str, str, str]]:
    """What transposes at the ends take, where the program has channels first and that is worth a word.

    With channels last they go, but a first convolution that reads pixels from DRAM may take longer: only trying tells.
    """
    settings, cycles = data["settings"], data["total_cycles"]
    moved = sum(part["cycles"] for part in data.get("estimate", ()) if part["name"] == END_TRANSPOSES)
    if settings is not None and settings["io_layout"] != "nhwc" and moved >= _LOUD * cycles > 0:
        note = 'of the NPU\'s cycles are transposes at the ends: the setting io_layout="auto" tries channels last there'
        yield "WORTH A TRY", f"{moved / cycles:.1%}", note


def _of_it(data: Data, where: str, first: int, layers: bool = True) -> str:
    """``; of it 1,000 calls of the NPU``: the parts of one clock, without the first so many."""
    parts = [part for part in data.get("estimate", ()) if part["where"] == where and (part["name"] in _NO_LAYERS) is not layers]
    named = ", ".join(f"{part['cycles']:,} {part['name']}" for part in parts[first:] if part["cycles"])
    return f"; of it {named}" if named else ""


def _clocks(data: Data) -> str:
    """``at 400 MHz of both``, or each."""
    npu, cpu = data["core_clock_hz"] / 1e6, data.get("cpu_clock_hz", data["core_clock_hz"]) / 1e6
    return f"at {npu:.0f} MHz of both" if npu == cpu else f"NPU at {npu:.0f} MHz, CPU at {cpu:.0f} MHz"


def kib(size: int | None) -> str:
    """A size in KiB."""
    return "unknown" if size is None else f"{size / 1024:,.1f} KiB"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"

"""The summary that ``print(program)`` and ``ethorch compile`` print for a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ethorch.figures.layer import CPU, NPU
from ethorch.lower.partition_report import refusal_texts, summarize_placement, writer_text
from ethorch.npu.passes.names import UNTESTED
from ethorch.report.advice import advice
from ethorch.support import tables
from ethorch.support.wording import count_noun, kib
from ethorch.targets.compile_spec import OPTIMIZED

if TYPE_CHECKING:
    from rich.console import RenderableType

Data = Mapping[str, Any]
BUDGET_COLUMNS = ("budget", "limit", "figure", "met")  #: Column titles of ``budget_rows``.
_LOUD = 0.02  # minimum weight of advice in the summary


def summary(data: Data) -> RenderableType:
    """Return a renderable with the headline, figures, budgets, advice, and the reasons why operators run on the CPU.

    Args:
        data: Result of ``Program.to_json``.
    """
    from rich.console import Group

    figures = tables.table(show_header=False)
    for name, value, note in rows(data):
        figures.add_row(name, value, note)
    parts: list[Any] = [head(data), "", figures]
    if data["budgets"]:
        budgets = tables.table()
        for name in BUDGET_COLUMNS:
            budgets.add_column(name, justify="right" if name in ("limit", "figure") else "left")
        for row in budget_rows(data):
            budgets.add_row(*row)
        parts += ["", budgets]
    if saving := largest_saving(data):
        parts += ["", saving]
    parts += [line for text in refusal_texts((*data["cpu"], *data["without_kernel"])) for line in ("", text)]
    return Group(*parts)


def head(data: Data) -> str:
    """Return the headline, e.g. ``5 of 5 PyTorch operators on ethos-u55-128 in 1 delegate.``"""
    operators = data["operators"]
    count = operators["delegates"]
    if operators["npu"] is None:
        kernels = count_noun(operators["cpu"], "kernel")
        delegates = count_noun(count, "delegate")
        return f"{delegates} on {data['target'] or 'no NPU'}, {kernels} on the CPU, including quantize and dequantize."
    of_method = f"Method {data['method']} (the program also contains {', '.join(others)}): " if (others := _others(data)) else ""
    return of_method + f"{summarize_placement(operators['npu'], operators['cpu'], data['target'], count)}."


def _others(data: Data) -> list[str]:
    return [name for name in data.get("methods", ()) if name != data["method"]]


def rows(data: Data) -> Iterator[tuple[str, str, str]]:
    """Iterate over (name, figure, note) for each known figure of a program."""
    yield from _time(data)
    board = data.get("board")
    if board and data["total_cycles"] is not None:
        if seen := board["spread"]:
            note = f"({count_noun(seen['count'], 'published measurement')} on {seen['of']})"
            yield "Measured boards", f"{seen['low']:.1f} to {seen['high']:.1f} times", f"the estimated time {note}"
        if board["assumed"]:
            numbers = (entry.split(": ")[:2] for entry in board["assumed"])  # "flash: bytes_per_second: assumed: ..."
            note = ", ".join(f"{memory}.{key}" for memory, key in numbers)
            yield "Assumed", count_noun(len(board["assumed"]), "value"), f"in the estimate: {note}"
    yield (
        "RAM",
        kib(data["ram_bytes"]),
        f"including ExecuTorch's runtime, excluding stacks; NPU feature maps {kib(data['sram_bytes'])}",
    )
    code = sum(part["flash_bytes"] for part in data["memory"]["components"] if part["name"] == "code")
    yield (
        "Flash",
        kib(data["flash_bytes"]),
        f"program {kib(data['flash_bytes'] - code)}, generated firmware {kib(code)}, excluding ExecuTorch's runtime",
    )
    if data["mac_count"]:
        yield "MACs", f"{data['mac_count']:,}", "multiply-accumulates per inference"
    accuracy = data["accuracy"]  # None before it is measured
    if accuracy:
        figure = "equal" if accuracy["sqnr_db"] is None else f"{accuracy['sqnr_db']:.1f} dB"
        yield "Accuracy", figure, f"SQNR relative to the float model, {count_noun(accuracy['samples'], 'sample')}"
    verification = data.get("verification")
    if verification and verification["delegates"]:
        yield (
            "Verified",
            f"{verification['equal']} of {verification['delegates']}",
            "delegates are bit-exact with the TOSA reference",
        )
        for row in verification["unchecked"]:
            yield "NOT VERIFIED", f"{row['method']} {row['delegate']}", row["reason"]
        for operator in verification["repairs"]:
            yield "Repaired", "1 copy", f"inserted at {operator} to avoid a Vela bug"
    for row in data.get("stream_passes", ()):
        effects = (
            _describe_change(row["cycles_after"], row["cycles_before"], "estimated cycles"),
            _describe_change(row["bytes_after"], row["bytes_before"], "bytes of the NPU's RAM"),
        )
        if any(effects):
            is_untested = row["name"] in UNTESTED and (data["settings"] or {}).get("stream") == OPTIMIZED
            yield "Pass", row["name"], " and ".join(filter(None, effects)) + (", untested on devices" if is_untested else "")
    if (writer := data.get("writer")) and writer["id"]:
        yield "Written by", writer["name"], writer_text(writer)
    for side in ("inputs", "outputs"):
        for number, info in enumerate(data[side]):
            codes = info["codes"]
            meaning = ""
            if codes is not None:
                sign, offset = ("-", codes["zero_point"]) if codes["zero_point"] >= 0 else ("+", -codes["zero_point"])
                meaning = f"value = (integer {sign} {offset}) * {codes['scale']:.6g}"
            yield f"{side[:-1].capitalize()} {number}", f"{info['dtype']}{list(info['shape'])}", meaning


def _describe_change(after: int, before: int, unit: str) -> str:
    if after == before:
        return ""
    return f"{'saves' if after < before else 'adds'} {abs(after - before):,} {unit} ({abs(after - before) / max(before, 1):.1%})"


def budget_rows(data: Data) -> Iterator[tuple[str, str, str, str]]:
    """Iterate over (name, limit, figure, met) for each budget. ``met`` is ``yes``, ``no`` or ``unknown``."""
    for row in data["budgets"]:
        in_bytes = row["name"] in ("ram", "flash") or row["name"].startswith("memory ")
        limit, figure = (_budget_figure(row[key], in_bytes) for key in ("limit", "found"))
        if row["found"] is None and row["holds"]:
            figure = "equal"  # equal outputs have infinite SQNR
        yield row["name"], limit, figure, "unknown" if row["holds"] is None else "yes" if row["holds"] else "no"


def _budget_figure(value: float | None, in_bytes: bool) -> str:
    return "unknown" if value is None else kib(int(value)) if in_bytes else f"{value:,.3f}"


def _time(data: Data) -> Iterator[tuple[str, str, str]]:
    if data["total_cycles"] is None:
        return
    rate = data["inferences_per_second"]
    note = "(estimated)" if rate is None else f"{rate:,.1f} per second (estimated)"
    yield "Inference time", f"{data['milliseconds']:.3f} ms", note
    processors = []
    for where, clock in ((CPU, data["cpu_clock_hz"]), (NPU, data["core_clock_hz"])):
        parts = sorted((part for part in data["estimate"] if part["where"] == where and part["cycles"]), key=_cycles, reverse=True)
        named = ", ".join(f"{part['name']} {part['cycles']:,}" for part in parts)
        note = f"{sum(map(_cycles, parts)):,} cycles at {clock / 1e6:,.0f} MHz: {named}"
        if where == NPU and data["util_mac_percentage"]:
            note += f"; MAC utilization {data['util_mac_percentage']:.1f}%"
        processors.append((sum(part["milliseconds"] for part in parts), f"  {where}", note, bool(parts)))
    for milliseconds, name, note, is_used in sorted(processors, reverse=True):
        if is_used:
            yield name, f"{milliseconds:.3f} ms", note


def _cycles(part: Mapping[str, Any]) -> int:
    return int(part["cycles"])


def largest_layers(data: Data, count: int = 10) -> list[tuple[str, float, str]]:
    """Return (name, cycles, formatted cycles) for the layers with the most cycles."""
    layers = sorted((layer for layer in data["layers"] if layer["op_cycles"]), key=lambda layer: -layer["op_cycles"])
    return [(f"{layer['where']} {layer['name']}", layer["op_cycles"], f"{layer['op_cycles']:,}") for layer in layers[:count]]


def largest_saving(data: Data) -> str:
    """Return the advice to print, or "". Prefer savings (``is_saving``), and ignore advice about refusals."""
    entries = [entry for entry in advice(data) if not entry.id.startswith("cpu.") and entry.weight >= _LOUD]
    largest = min(entries, key=lambda entry: not entry.is_saving, default=None)
    if largest is None:
        return ""
    return f"Largest saving: up to {largest.figure}. {largest.text}" if largest.is_saving else f"Advice: {largest.text}"

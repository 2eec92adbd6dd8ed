"""What boards and FVPs say of a run, read: logs of the NPU's counters, histograms of QREAD, times of calls.

Files come from outside. Each is read whole up to a limit, each number is checked, and a line that cannot be what it seems to be is
refused with its number.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from ethorch.support.errors import FormatError

_MOST_BYTES = 64 * 2**20
_MOST_COUNT = 2**53
_SHOWN = 60  # characters of a line that a message repeats

FORMATS = (
    "a log with ethosu_pmu_cycle_cntr (ExecuTorch's runner, Zephyr), NPU TOTAL cycles (Arm's evaluation kit) or cycles of the NPU "
    "(ethorch's firmware); CSV with the columns qread_bytes,samples; JSON of offset: count; CSV with the column milliseconds"
)


@dataclass
class Measurements:
    """What files say.

    Attributes:
        npu_cycles: of the NPU for each inference, as its cycle counter has them.
        cpu_cycles: of the CPU for each inference, as firmware counts them; those of an FVP mean nothing.
        delegate_cycles: by number of a delegate, for each call.
        counters: name of an event of the NPU -> its count, for each inference.
        histogram: (number of a delegate or None where the file does not say, bytes that QREAD had read) -> how often.
        milliseconds: of each call.
        files: their names.
    """

    npu_cycles: list[float] = field(default_factory=list)
    cpu_cycles: list[float] = field(default_factory=list)
    delegate_cycles: dict[int, list[float]] = field(default_factory=dict)
    counters: dict[str, list[float]] = field(default_factory=dict)
    histogram: Counter[tuple[int | None, int]] = field(default_factory=Counter)
    milliseconds: list[float] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    lines: dict[tuple[int | None, int], str] = field(default_factory=dict)


def read(paths: tuple[Path, ...]) -> Measurements:
    """All files as one; which form each has is told by its contents.

    Raises:
        FormatError: a file cannot be read, is too large, has none of the forms, or a line is wrong: with its number.
    """
    found = Measurements()
    for path in paths:
        text = _text(path)
        found.files.append(str(path))
        head = next((line for line in text.splitlines() if line.strip()), "")
        if head.lstrip().startswith("{"):
            _json(path, text, found)
        elif (columns := _columns(head)) is not None:
            _rows(path, text, columns, found)
        elif not _log(path, text, found):
            raise FormatError(f"{path}: nothing is known here. Known are {FORMATS}.")
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}.") from None
    if len(data) > _MOST_BYTES:
        raise FormatError(f"{path} has more than {_MOST_BYTES // 2**20} MiB: cut out the runs that are wanted.")
    return data.decode("utf-8", "replace")  # what a serial line garbles is no reason to read nothing


# tables ---------------------------------------------------------------------------------------------------------------

_OFFSETS, _COUNTS, _TIMES = ("qread_bytes", "qread", "offset"), ("samples", "count"), ("milliseconds", "ms")


def _columns(head: str) -> list[str] | None:
    """The names of a table's columns; None where its first line is none of a table."""
    names = [name.strip().lower() for name in head.split(",")]
    known = any(name in names for name in _OFFSETS) and any(name in names for name in _COUNTS)
    return names if known or any(name in names for name in _TIMES) else None


def _rows(path: Path, text: str, columns: list[str], found: Measurements) -> None:
    reader = csv.reader(StringIO(text))
    offset, count, time = (next((columns.index(n) for n in names if n in columns), None) for names in (_OFFSETS, _COUNTS, _TIMES))
    delegate = columns.index("delegate") if "delegate" in columns else None
    stream = columns.index("stream_id") if "stream_id" in columns and delegate is None else None
    streams = set()
    header = False
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if not header:
                header = True
                continue
            where = f"{path}, line {reader.line_num}"
            if len(row) != len(columns):
                raise FormatError(f"{where}: {len(row)} columns, the first line has {len(columns)}: {', '.join(columns)}.")
            if time is not None:
                found.milliseconds.append(_number(row[time], where, "milliseconds", least=0.0))
                continue
            assert offset is not None and count is not None
            which = None if delegate is None else _integer(row[delegate], where, "delegate")
            if stream is not None:
                streams.add(row[stream])
            _sampled(found, where, which, row[offset], row[count])
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num}: {error}.") from None
    if len(streams) > 1:
        raise FormatError(
            f"{path} has samples of {len(streams)} streams, {', '.join(sorted(streams)[:4])}: name the program's delegate of "
            "each in a column delegate."
        )
    if not found.histogram and not found.milliseconds:
        raise FormatError(f"{path} has no row below {', '.join(columns)}.")


def _json(path: Path, text: str, found: Measurements) -> None:
    try:
        data = json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {error}.") from None
    if not isinstance(data, dict) or not data:
        raise FormatError(f"{path} is no object of offset: count.")
    for key, value in data.items():
        _sampled(found, f"{path}, entry {key[:_SHOWN]!r}", None, key, value if isinstance(value, int) else repr(value))


def _sampled(found: Measurements, where: str, delegate: int | None, offset: str, count: int | str) -> None:
    position = _integer(offset, where, "offset")
    if position % 4:
        raise FormatError(f"{where}: offset is {position}; it has to be a multiple of 4: the NPU reads whole words.")
    found.histogram[delegate, position] += _integer(count, where, "count")
    found.lines.setdefault((delegate, position), where)


def _integer(text: int | str, where: str, what: str) -> int:
    """A number from 0 to 2^53, decimal or with 0x."""
    shown = str(text).strip()
    if isinstance(text, bool) or not re.fullmatch(r"\d{1,16}|0[xX][0-9a-fA-F]{1,14}", shown):
        raise FormatError(f"{where}: {what} is {shown[:_SHOWN]!r}; it has to be a whole number, decimal or with 0x.")
    number = int(shown, 16 if shown[:2].lower() == "0x" else 10)
    if number > _MOST_COUNT:
        raise FormatError(f"{where}: {what} is {number}; more than {_MOST_COUNT} cannot be.")
    return number


def _number(text: str, where: str, what: str, least: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > least):
        raise FormatError(f"{where}: {what} is {text.strip()[:_SHOWN]!r}; it has to be a number above {least:g}.")
    return number


# logs -----------------------------------------------------------------------------------------------------------------

_PER = r"(?:\s*\((?P<per>[\d.]+) per inference\))?"
_VALUE = r"(?P<value>[^\s(,]+)"


def _patterns() -> Iterator[tuple[re.Pattern[str], str]]:
    """What lines look like, and what each one's number is."""
    yield re.compile(rf"ethosu_pmu_cycle_cntr\s*:\s*{_VALUE}{_PER}"), "npu"
    yield re.compile(rf"ethosu_pmu_cntr(?P<key>\d+)\s*:\s*{_VALUE}{_PER}"), "event"
    yield re.compile(r"Ethos-U PMU Events:\s*\[(?P<key>[A-Za-z0-9_, ]+)\]"), "names"
    yield re.compile(rf"Ethos-U delegate (?P<key>\d+): {_VALUE} backend invocations"), "calls"
    yield re.compile(rf"Ethos-U delegate (?P<key>\d+) PMU cycles: {_VALUE}"), "delegate"
    yield re.compile(rf"Inference runtime:\s*{_VALUE} CPU cycles total{_PER}"), "cpu"
    yield re.compile(rf"NPU TOTAL cycles:\s*{_VALUE}"), "npu"
    yield re.compile(rf"NPU (?P<key>[A-Z0-9_]+) (?:cycles|beats):\s*{_VALUE}"), "named"
    yield re.compile(rf"run \d+:\s*{_VALUE} cycles of the NPU"), "npu"


_PATTERNS = tuple(_patterns())


def _log(path: Path, text: str, found: Measurements) -> bool:
    """Takes what a log says; was there anything?"""
    numbered: dict[int, list[float]] = {}
    calls: dict[int, float] = {}
    names: list[str] = []
    seen = False

    def call(match: re.Match[str], number: float) -> None:
        calls[int(match["key"])] = number

    kinds: Mapping[str, Callable[[re.Match[str], float], None]] = {
        "npu": lambda _, number: found.npu_cycles.append(number),
        "cpu": lambda _, number: found.cpu_cycles.append(number),
        "event": lambda match, number: numbered.setdefault(int(match["key"]), []).append(number),
        "named": lambda match, number: found.counters.setdefault(match["key"], []).append(number),
        "calls": call,
        "delegate": lambda match, number: found.delegate_cycles.setdefault(int(match["key"]), []).append(
            number / max(calls.get(int(match["key"]), 1), 1)
        ),
    }
    for line, content in enumerate(text.splitlines(), 1):
        for pattern, kind in _PATTERNS:
            match = pattern.search(content)
            if match is None:
                continue
            if kind == "names":
                names = [name.strip().removeprefix("ETHOSU_PMU_") for name in match["key"].split(",")]
                break
            where = f"{path}, line {line}"
            number: float = _integer(match["value"], where, match[0].split(":")[0].strip())
            if match.groupdict().get("per") is not None:
                number = _number(match["per"], where, "the count per inference", least=-1.0)
            kinds[kind](match, number)
            seen = True
            break
    for key, values in numbered.items():
        found.counters.setdefault(names[key] if key < len(names) else f"counter {key}", []).extend(values)
    return seen

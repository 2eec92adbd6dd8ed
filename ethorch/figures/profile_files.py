"""Read measurements from boards and FVPs: logs with NPU counters, QREAD histograms and call times.

Files are not trusted, so their sizes and numbers are checked.
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

_MAX_BYTES = 64 * 2**20
_MAX_COUNT = 2**53
_MAX_QUOTE = 60  # maximum number of characters that an error quotes

FORMATS = (
    'a log with "ethosu_pmu_cycle_cntr" (ExecuTorch\'s runner, Zephyr), "NPU TOTAL cycles" (Arm\'s evaluation kit) or "cycles of '
    "the NPU\" (ethorch's firmware); CSV with the columns qread_bytes,samples; a JSON object {offset: count}; or CSV with the "
    "column milliseconds"
)


@dataclass
class Measurements:
    """Measurements read from files.

    Attributes:
        npu_cycles: NPU cycles of each inference, read from the NPU's cycle counter.
        cpu_cycles: CPU cycles of each inference, counted by firmware. FVPs do not simulate CPU cycles accurately.
        delegate_cycles: NPU cycles of each delegate call, by delegate number.
        counters: Event counts of each inference, by event name.
        histogram: Counts of QREAD samples, keyed by delegate number (None if not recorded) and offset in bytes.
        milliseconds: Time of each inference.
        lines: File and line at which each key of ``histogram`` first occurs.
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
    """Read measurements from files. The contents of each file determine its format.

    Raises:
        FormatError: A file is unreadable, too large, malformed, or in an unknown format.
    """
    measurements = Measurements()
    for path in paths:
        text = _read_text(path)
        measurements.files.append(str(path))
        head = next((line for line in text.splitlines() if line.strip()), "")
        if head.lstrip().startswith("{"):
            _read_json(path, text, measurements)
        elif (columns := _read_header(head)) is not None:
            _read_rows(path, text, columns, measurements)
        elif not _read_log(path, text, measurements):
            raise FormatError(f"{path}: expected {FORMATS}.")
    return measurements


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}.") from None
    if len(data) > _MAX_BYTES:
        raise FormatError(f"{path}: expected at most {_MAX_BYTES // 2**20} MiB, got a larger file. Remove runs from the file.")
    return data.decode("utf-8", "replace")  # a serial log can contain invalid bytes


# tables ---------------------------------------------------------------------------------------------------------------

_OFFSETS, _COUNTS, _TIMES = ("qread_bytes", "qread", "offset"), ("samples", "count"), ("milliseconds", "ms")


def _read_header(head: str) -> list[str] | None:
    names = [name.strip().lower() for name in head.split(",")]
    has_samples = any(name in names for name in _OFFSETS) and any(name in names for name in _COUNTS)
    return names if has_samples or any(name in names for name in _TIMES) else None


def _read_rows(path: Path, text: str, columns: list[str], measurements: Measurements) -> None:
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
                raise FormatError(f"{where}: expected {len(columns)} columns ({', '.join(columns)}), got {len(row)}.")
            if time is not None:
                measurements.milliseconds.append(_parse_number(row[time], where, "milliseconds", least=0.0))
                continue
            assert offset is not None and count is not None
            delegate_number = None if delegate is None else _parse_integer(row[delegate], where, "delegate")
            if stream is not None:
                streams.add(row[stream])
            _add_sample(measurements, where, delegate_number, row[offset], row[count])
    except csv.Error as error:
        raise FormatError(f"{path}, line {reader.line_num}: {error}.") from None
    if len(streams) > 1:
        raise FormatError(
            f"{path}: expected samples of one command stream, got {len(streams)} stream_ids ({', '.join(sorted(streams)[:4])}). "
            "Replace the column stream_id with a column delegate that contains delegate numbers."
        )
    if not measurements.histogram and not measurements.milliseconds:
        raise FormatError(f"{path}: expected rows after the header {', '.join(columns)}, got none.")


def _read_json(path: Path, text: str, measurements: Measurements) -> None:
    try:
        data = json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {error}.") from None
    if not isinstance(data, dict) or not data:
        raise FormatError(f"{path}: expected a JSON object {{offset: count}} with at least one entry, got an empty object.")
    for key, value in data.items():
        _add_sample(
            measurements, f"{path}, entry {key[:_MAX_QUOTE]!r}", None, key, value if isinstance(value, int) else repr(value)
        )


def _add_sample(measurements: Measurements, where: str, delegate: int | None, offset: str, count: int | str) -> None:
    position = _parse_integer(offset, where, "offset")
    if position % 4:
        raise FormatError(f"{where}: expected an offset that is a multiple of 4, got {position}.")
    measurements.histogram[delegate, position] += _parse_integer(count, where, "count")
    measurements.lines.setdefault((delegate, position), where)


def _parse_integer(text: int | str, where: str, quantity: str) -> int:
    digits = str(text).strip()
    if isinstance(text, bool) or not re.fullmatch(r"\d{1,16}|0[xX][0-9a-fA-F]{1,14}", digits):
        raise FormatError(
            f"{where}, {quantity}: expected a decimal or 0x-prefixed hexadecimal integer, got {digits[:_MAX_QUOTE]!r}."
        )
    number = int(digits, 16 if digits[:2].lower() == "0x" else 10)
    if number > _MAX_COUNT:
        raise FormatError(f"{where}, {quantity}: expected at most {_MAX_COUNT}, got {number}.")
    return number


def _parse_number(text: str, where: str, quantity: str, least: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > least):
        raise FormatError(f"{where}, {quantity}: expected a number greater than {least:g}, got {text.strip()[:_MAX_QUOTE]!r}.")
    return number


# logs -----------------------------------------------------------------------------------------------------------------

_PER = r"(?:\s*\((?P<per>[\d.]+) per inference\))?"
_VALUE = r"(?P<value>[^\s(,]+)"


def _list_patterns() -> Iterator[tuple[re.Pattern[str], str]]:
    yield re.compile(rf"ethosu_pmu_cycle_cntr\s*:\s*{_VALUE}{_PER}"), "npu"
    yield re.compile(rf"ethosu_pmu_cntr(?P<key>\d+)\s*:\s*{_VALUE}{_PER}"), "event"
    yield re.compile(r"Ethos-U PMU Events:\s*\[(?P<key>[A-Za-z0-9_, ]+)\]"), "names"
    yield re.compile(rf"Ethos-U delegate (?P<key>\d+): {_VALUE} backend invocations"), "calls"
    yield re.compile(rf"Ethos-U delegate (?P<key>\d+) PMU cycles: {_VALUE}"), "delegate"
    yield re.compile(rf"Inference runtime:\s*{_VALUE} CPU cycles total{_PER}"), "cpu"
    yield re.compile(rf"NPU TOTAL cycles:\s*{_VALUE}"), "npu"
    yield re.compile(rf"NPU (?P<key>[A-Z0-9_]+) (?:cycles|beats):\s*{_VALUE}"), "named"
    yield re.compile(rf"run \d+:\s*{_VALUE} cycles of the NPU"), "npu"


_PATTERNS = tuple(_list_patterns())


def _read_log(path: Path, text: str, measurements: Measurements) -> bool:
    numbered: dict[int, list[float]] = {}
    calls: dict[int, float] = {}
    names: list[str] = []
    has_measurements = False

    def add_call(match: re.Match[str], number: float) -> None:
        calls[int(match["key"])] = number

    kinds: Mapping[str, Callable[[re.Match[str], float], None]] = {
        "npu": lambda _, number: measurements.npu_cycles.append(number),
        "cpu": lambda _, number: measurements.cpu_cycles.append(number),
        "event": lambda match, number: numbered.setdefault(int(match["key"]), []).append(number),
        "named": lambda match, number: measurements.counters.setdefault(match["key"], []).append(number),
        "calls": add_call,
        "delegate": lambda match, number: measurements.delegate_cycles.setdefault(int(match["key"]), []).append(
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
            number: float = _parse_integer(match["value"], where, match[0].split(":")[0].strip())
            if match.groupdict().get("per") is not None:
                number = _parse_number(match["per"], where, "count per inference", least=-1.0)
            kinds[kind](match, number)
            has_measurements = True
            break
    for key, values in numbered.items():
        measurements.counters.setdefault(names[key] if key < len(names) else f"counter {key}", []).extend(values)
    return has_measurements

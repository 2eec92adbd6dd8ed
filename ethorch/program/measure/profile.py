"""What was measured of a program beside what is estimated for it: ``ethorch report --profile`` and ``Program.profile``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ethorch.figures.commands import CommandMap, command_maps
from ethorch.figures.layer import NPU, Layer
from ethorch.figures.profile_files import Measurements, read
from ethorch.figures.subject import subject
from ethorch.program.record import Record
from ethorch.support import tables
from ethorch.support.errors import FormatError, SpecError
from ethorch.support.rendering import as_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


_SHOWN = 30  # layers that the text lists; JSON has all


@dataclass(frozen=True)
class Measured:
    """A figure that was estimated and measured."""

    @property
    def ratio(self) -> float | None:
        """Measured over estimated: above 1 where the estimate was too good."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """As plain data; keys are the attributes' names, and ``ratio``."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True)
class Figure(Measured):
    """A figure of the whole program.

    Attributes:
        name: ``cycles of the NPU``, ``cycles of delegate 0``, ``milliseconds of a call``, ``cycles of the CPU``.
        estimated: None where it is unknown.
        measured: the median.
        least, most: of what was measured.
        count: how many times it was measured.
    """

    name: str
    estimated: float | None
    measured: float
    least: float
    most: float
    count: int

    @property
    def ratio(self) -> float | None:
        """Measured over estimated: above 1 where the estimate was too good."""
        return self.measured / self.estimated if self.estimated else None


@dataclass(frozen=True)
class LayerTime(Measured):
    """A layer on the NPU, and how often the NPU was met at it.

    Attributes:
        index, name, operator, module, source: of the layer.
        estimated_cycles: None where they are unknown.
        estimated_share: of the NPU's cycles, 0 to 1; None where they are unknown.
        samples: how often QREAD stood in its commands.
        measured_share: of all samples, 0 to 1.
        measured_cycles: that share of the cycles that the NPU's counter has; None where none was given.
    """

    index: int
    name: str
    operator: str
    module: str
    source: str
    estimated_cycles: int | None
    estimated_share: float | None
    samples: int
    measured_share: float
    measured_cycles: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over estimated: of cycles where they are known, else of shares."""
        if self.measured_cycles is not None and self.estimated_cycles:
            return self.measured_cycles / self.estimated_cycles
        return self.measured_share / self.estimated_share if self.estimated_share else None


@dataclass(frozen=True)
class Profile:
    """Measurements beside estimates.

    Attributes:
        figures: of the whole program.
        layers: those on the NPU in the order of execution; empty without a histogram.
        counters: name of an event of the NPU -> its count in an inference, the median.
        files: what was read.
    """

    figures: tuple[Figure, ...]
    layers: tuple[LayerTime, ...]
    counters: Mapping[str, float]
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "figures": [figure.to_json() for figure in self.figures],
            "layers": [layer.to_json() for layer in self.layers],
            "counters": dict(self.counters),
            "files": list(self.files),
        }

    def rich(self) -> RenderableType:
        """Tables: figures, the layers with most samples, counters."""
        from rich.console import Group

        def table(*names: str, text: tuple[str, ...]) -> Table:
            made = tables.table()
            for name in names:
                made.add_column(name, justify="left" if name in text else "right")
            return made

        parts: list[Any] = []
        if self.figures:
            totals = table("", "estimated", "measured", "measured / estimated", "from", "to", "times", text=("",))
            for one in self.figures:
                numbers = (one.estimated, one.measured, one.ratio, one.least, one.most)
                totals.add_row(one.name, *map(_text, numbers), str(one.count))
            parts.append(totals)
        if self.layers:
            rows = table(
                "layer", "operator", "estimated", "share", "samples", "share met", "measured", "ratio", "module",
                text=("layer", "operator", "module"),
            )  # fmt: skip
            for row in sorted(self.layers, key=lambda layer: -layer.samples)[:_SHOWN]:
                rows.add_row(
                    row.name,
                    row.operator,
                    _text(row.estimated_cycles),
                    _percent(row.estimated_share),
                    f"{row.samples:,}",
                    _percent(row.measured_share),
                    _text(row.measured_cycles),
                    _text(row.ratio),
                    " ".join(filter(None, (row.module, row.source))),
                )
            parts += ["", rows]
            if len(self.layers) > _SHOWN:
                parts.append(f"and {len(self.layers) - _SHOWN} layers with fewer samples; --json has all")
        if self.counters:
            events = table("event of the NPU", "count", text=("event of the NPU",))
            for name, count in self.counters.items():
                events.add_row(name, _text(count))
            parts += ["", events]
        return Group(*parts)

    def __str__(self) -> str:
        return as_text(self.rich())


def import_profile(record: Record, *files: str | os.PathLike[str]) -> Profile:
    """Read what was measured, and put it beside the program's estimate.

    Args:
        record: Of the program that ran: its command streams tell which operator an offset belongs to, so it has to be the same
        file.
        files: logs of the NPU's counters, histograms of QREAD, tables of milliseconds; see ``profile_files.FORMATS``.

    Raises:
        SpecError: no file is given.
        FormatError: a file has none of the forms, a line of it is wrong, or an offset is not one of the program's.
        MachineFault: a command stream of the program is malformed.
    """
    if not files:
        raise SpecError("there is no file to import.")
    found = read(tuple(map(Path, files)))
    counters = {name: median(values) for name, values in found.counters.items()}
    return Profile(tuple(_figures(record, found)), tuple(_layers(record, found)), counters, tuple(found.files))


def _figures(record: Record, found: Measurements) -> Iterator[Figure]:
    estimate = record.estimate
    cpu = (estimate.cpu_cycles, estimate.overhead_cycles)
    on_cpu = None if None in cpu else sum(count or 0 for count in cpu)
    for name, estimated, values in (
        ("cycles of the NPU", estimate.npu_cycles, found.npu_cycles),
        ("milliseconds of a call", estimate.milliseconds, found.milliseconds),
        ("cycles of the CPU", on_cpu, found.cpu_cycles),
    ):
        if values:
            yield Figure(name, estimated, median(values), min(values), max(values), len(values))
    for delegate, values in sorted(found.delegate_cycles.items()):
        own = [layer.cycles for layer in record.layers if layer.where == NPU and layer.delegate == delegate]
        if not own:
            raise FormatError(f"delegate {delegate} of the log: the program has none of this number; was another one run?")
        known = None if None in own else sum(count or 0 for count in own)
        yield Figure(f"cycles of delegate {delegate}", known, median(values), min(values), max(values), len(values))


def _layers(record: Record, found: Measurements) -> Iterator[LayerTime]:
    if not found.histogram:
        return
    layers = record.layers
    maps = command_maps(subject(record.build or record.pte, record.method), layers, record.command_sources)
    samples: dict[int, int] = {}
    for (delegate, position), count in found.histogram.items():
        where = found.lines[delegate, position]
        commands = _commands(maps, delegate, where)
        if position > commands.stream_bytes:
            raise FormatError(
                f"{where}: offset {position} is behind the {commands.stream_bytes} bytes of commands of delegate "
                f"{commands.delegate}; was another program run?"
            )
        index = commands.at(position)
        samples[index] = samples.get(index, 0) + count
    total = sum(samples.values())
    if not total:
        raise FormatError(f"{found.files[0]}: all counts are 0.")
    measured = median(found.npu_cycles) if found.npu_cycles else None
    sampled = {layers[index].delegate for index in samples}
    own = [layer for layer in layers if layer.where == NPU and layer.delegate in sampled]
    known = None if any(layer.cycles is None for layer in own) else sum(layer.cycles or 0 for layer in own)
    if len(sampled) < len(maps):
        measured = None  # the counter's cycles are of all delegates
    for layer in own:
        yield _beside(layer, samples.get(layer.index, 0), total, measured, known)


def _beside(layer: Layer, samples: int, total: int, measured: float | None, known: int | None) -> LayerTime:
    share = samples / total
    return LayerTime(
        layer.index,
        layer.name,
        layer.operator,
        layer.module,
        layer.source,
        layer.cycles,
        (layer.cycles or 0) / known if known else None,
        samples,
        share,
        None if measured is None else share * measured,
    )


def _commands(maps: Mapping[int, CommandMap], delegate: int | None, where: str) -> CommandMap:
    """The commands that samples are of."""
    if delegate is None and len(maps) == 1:
        return next(iter(maps.values()))
    if delegate is None or delegate not in maps:
        said = "no column delegate" if delegate is None else f"delegate {delegate}"
        raise FormatError(f"{where}: {said}; the program's on the NPU are {', '.join(map(str, maps)) or 'none'}.")
    return maps[delegate]


def _text(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if isinstance(number, int) or abs(number) >= 1000 else f"{number:,.3f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"

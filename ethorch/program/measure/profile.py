"""Combine measured and estimated times of a program, for ``ethorch report --profile`` and ``Program.profile``."""

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


_MAX_ROWS = 30  # maximum number of layers in the text; JSON contains all layers


@dataclass(frozen=True)
class Measured:
    """A figure with an estimate and a measurement."""

    @property
    def ratio(self) -> float | None:
        """The measured value divided by the estimated value, or None if unknown."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data, including ``ratio``."""
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True)
class Figure(Measured):
    """A figure of the program or of one delegate.

    Attributes:
        name: ``NPU cycles``, ``cycles of delegate 0``, ``milliseconds per call`` or ``CPU cycles``.
        measured: Median of the measurements.
        least, most: Smallest and largest measurement.
    """

    name: str
    estimated: float | None
    measured: float
    least: float
    most: float
    count: int

    @property
    def ratio(self) -> float | None:
        """See :attr:`Measured.ratio`."""
        return self.measured / self.estimated if self.estimated else None


@dataclass(frozen=True)
class LayerTime(Measured):
    """The estimated and measured time of a layer on the NPU.

    Attributes:
        index, name, operator, module, source: See :class:`ethorch.figures.Layer`.
        estimated_share: The layer's share of the estimated cycles of all delegates with QREAD samples, or None if unknown.
        samples: Number of samples of register QREAD that point to the layer's commands.
        measured_share: The layer's share of all QREAD samples, from 0 to 1.
        measured_cycles: ``measured_share`` multiplied by the NPU cycle counter. None if the counter is missing or a delegate has no
            samples.
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
        """Measured cycles divided by estimated cycles, or ``measured_share / estimated_share`` if cycles are unknown."""
        if self.measured_cycles is not None and self.estimated_cycles:
            return self.measured_cycles / self.estimated_cycles
        return self.measured_share / self.estimated_share if self.estimated_share else None


@dataclass(frozen=True)
class Profile:
    """The measurements and estimates of a program.

    Attributes:
        layers: Layers of the sampled delegates in execution order, or empty if the files contain no QREAD samples.
        counters: Median count per inference for each NPU event.
    """

    figures: tuple[Figure, ...]
    layers: tuple[LayerTime, ...]
    counters: Mapping[str, float]
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {
            "figures": [figure.to_json() for figure in self.figures],
            "layers": [layer.to_json() for layer in self.layers],
            "counters": dict(self.counters),
            "files": list(self.files),
        }

    def rich(self) -> RenderableType:
        """Return tables of the figures, the layers with the most samples, and the counters."""
        from rich.console import Group

        def table(*names: str, text: tuple[str, ...]) -> Table:
            columns = tables.table()
            for name in names:
                columns.add_column(name, justify="left" if name in text else "right")
            return columns

        parts: list[Any] = []
        if self.figures:
            totals = table("", "estimated", "measured", "measured / estimated", "min", "max", "count", text=("",))
            for figure in self.figures:
                numbers = (figure.estimated, figure.measured, figure.ratio, figure.least, figure.most)
                totals.add_row(figure.name, *map(_text, numbers), str(figure.count))
            parts.append(totals)
        if self.layers:
            rows = table(
                "layer", "operator", "estimated", "share", "samples", "sample share", "measured", "ratio", "module",
                text=("layer", "operator", "module"),
            )  # fmt: skip
            for row in sorted(self.layers, key=lambda layer: -layer.samples)[:_MAX_ROWS]:
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
            if len(self.layers) > _MAX_ROWS:
                parts.append(f"and {len(self.layers) - _MAX_ROWS} layers with fewer samples; --json lists all layers")
        if self.counters:
            events = table("NPU event", "count", text=("NPU event",))
            for name, count in self.counters.items():
                events.add_row(name, _text(count))
            parts += ["", events]
        return Group(*parts)

    def __str__(self) -> str:
        return as_text(self.rich())


def import_profile(record: Record, *files: str | os.PathLike[str]) -> Profile:
    """Read measurements and combine them with the program's estimates.

    Args:
        record: Record of the measured program. It maps offsets in command streams to layers.
        files: QREAD histograms, tables of call times, or logs with NPU counters. See ``profile_files.FORMATS``.

    Raises:
        SpecError: No files were passed.
        FormatError: A file is malformed, or contains a delegate number or an offset that does not exist in the program.
        MachineFault: A command stream of the program is malformed.
    """
    if not files:
        raise SpecError("expected at least one file, got none. Pass the paths of measurements.")
    measurements = read(tuple(map(Path, files)))
    counters = {name: median(counts) for name, counts in measurements.counters.items()}
    layers = tuple(_layers(record, measurements))
    return Profile(tuple(_figures(record, measurements)), layers, counters, tuple(measurements.files))


def _figures(record: Record, measurements: Measurements) -> Iterator[Figure]:
    estimate = record.estimate
    cpu = (estimate.cpu_cycles, estimate.overhead_cycles)
    on_cpu = None if None in cpu else sum(count or 0 for count in cpu)
    for name, estimated, values in (
        ("NPU cycles", estimate.npu_cycles, measurements.npu_cycles),
        ("milliseconds per call", estimate.milliseconds, measurements.milliseconds),
        ("CPU cycles", on_cpu, measurements.cpu_cycles),
    ):
        if values:
            yield Figure(name, estimated, median(values), min(values), max(values), len(values))
    for delegate, values in sorted(measurements.delegate_cycles.items()):
        cycles = [layer.cycles for layer in record.layers if layer.where == NPU and layer.delegate == delegate]
        if not cycles:
            raise FormatError(
                f"log: expected counters of the program's delegates, got counters of delegate {delegate}. Use the program that was "
                "measured."
            )
        estimated = None if None in cycles else sum(count or 0 for count in cycles)
        yield Figure(f"cycles of delegate {delegate}", estimated, median(values), min(values), max(values), len(values))


def _layers(record: Record, measurements: Measurements) -> Iterator[LayerTime]:
    if not measurements.histogram:
        return
    layers = record.layers
    maps = command_maps(subject(record.build or record.pte, record.method), layers, record.command_sources)
    samples: dict[int, int] = {}
    for (delegate, position), count in measurements.histogram.items():
        where = measurements.lines[delegate, position]
        commands = _find_commands(maps, delegate, where)
        if position > commands.stream_bytes:
            raise FormatError(
                f"{where}: expected an offset within the {commands.stream_bytes} bytes of commands for delegate "
                f"{commands.delegate}, got {position}. Use the program that was measured."
            )
        index = commands.at(position)
        samples[index] = samples.get(index, 0) + count
    total = sum(samples.values())
    if not total:
        raise FormatError(f"{measurements.files[0]}: expected at least one count greater than 0, got only zeros.")
    measured = median(measurements.npu_cycles) if measurements.npu_cycles else None
    sampled = {layers[index].delegate for index in samples}
    sampled_layers = [layer for layer in layers if layer.where == NPU and layer.delegate in sampled]
    has_cycles = all(layer.cycles is not None for layer in sampled_layers)
    estimated = sum(layer.cycles or 0 for layer in sampled_layers) if has_cycles else None
    if len(sampled) < len(maps):
        measured = None  # the counter includes all delegates
    for layer in sampled_layers:
        yield _layer_time(layer, samples.get(layer.index, 0), total, measured, estimated)


def _layer_time(layer: Layer, samples: int, total: int, measured: float | None, estimated: int | None) -> LayerTime:
    share = samples / total
    return LayerTime(
        layer.index,
        layer.name,
        layer.operator,
        layer.module,
        layer.source,
        layer.cycles,
        (layer.cycles or 0) / estimated if estimated else None,
        samples,
        share,
        None if measured is None else share * measured,
    )


def _find_commands(maps: Mapping[int, CommandMap], delegate: int | None, where: str) -> CommandMap:
    if delegate is None and len(maps) == 1:
        return next(iter(maps.values()))
    if delegate is None or delegate not in maps:
        actual = "no column delegate" if delegate is None else f"delegate {delegate}"
        delegates = ", ".join(map(str, maps)) or "none"
        raise FormatError(f"{where}: expected an NPU delegate of the program ({delegates}), got {actual}.")
    return maps[delegate]


def _text(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if isinstance(number, int) or abs(number) >= 1000 else f"{number:,.3f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"

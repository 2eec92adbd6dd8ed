"""Draw charts as inline SVG.

Positions are percentages of the drawing area, so that the page width does not affect the text size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

_TICKS = 5  # approximate number of ticks of an axis
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Attributes:
        title: Quantity and unit.
        low, high: Values at the two ends. Both must be positive if the axis is logarithmic.
        names: Labels of the positions 0, 1, ..., or empty to label the ticks with numbers.
    """

    title: str
    low: float
    high: float
    is_logarithmic: bool = False
    names: tuple[str, ...] = ()

    def percent(self, position: float) -> float:
        """Return a position as a percentage of the axis, clamped to the range from -100 to 200."""
        low, high = self.low, self.high
        if self.is_logarithmic:
            low, high, position = math.log10(low), math.log10(high), math.log10(max(position, 1e-300))
        return max(-100.0, min(200.0, 100 * (position - low) / (high - low or 1)))

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Iterate over the position and the label of each tick."""
        if self.names:
            yield from ((float(number), name) for number, name in enumerate(self.names))
        elif self.is_logarithmic:
            for exponent in range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1):
                yield 10.0**exponent, format_tick(10.0**exponent, 10.0**exponent)
        else:
            step = round_step((self.high - self.low) / _TICKS)
            for number in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1):
                yield number * step, format_tick(number * step, self.high)


@dataclass(frozen=True)
class Box:
    """A rectangle with a tooltip and a label. The label is cut off at the edge of the rectangle."""

    x0: float
    x1: float
    y0: float
    y1: float
    color: str
    tooltip: str = ""
    opacity: float = 1.0
    label: str = ""


@dataclass(frozen=True)
class Line:
    """A line through the points (x, y)."""

    points: Sequence[tuple[float, float]]
    color: str
    width: float = 1.5
    is_dotted: bool = False


@dataclass(frozen=True)
class Point:
    """A circle or a diamond with a tooltip, a radius in pixels, and a label above."""

    x: float
    y: float
    radius: float
    color: str
    tooltip: str = ""
    label: str = ""
    is_diamond: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart with two axes and a legend.

    Attributes:
        marks: Marks in drawing order. Coordinates are in the axes' units.
        legend: Name and color of each group of marks. A legend with one group is not shown.
        height: Height of the drawing area in pixels.
    """

    x: Axis
    y: Axis
    marks: tuple[Box | Line | Point, ...]
    legend: tuple[tuple[str, str], ...] = ()
    height: int = 280


def round_step(step: float) -> float:
    """Return the least number at or above the argument that is 1, 2 or 5 times a power of ten."""
    if not (step > 0 and math.isfinite(step)):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= step * (1 - 1e-9)), 10 * power)


def format_tick(number: float, largest: float) -> str:
    """Format a number, e.g. ``1.5k``. The largest number on the axis determines the suffix."""
    size, suffix = next(((size, suffix) for size, suffix in _SUFFIXES if abs(largest) >= 10 * size), (1, ""))
    return f"{number / size:,.6g}{suffix}" if number else "0"


def draw(chart: Chart) -> str:
    """Return the HTML of a chart, with all text escaped."""
    parts = [*_grid(chart)]
    for mark in chart.marks:
        if isinstance(mark, Box):
            parts.append(_box(chart, mark))
        elif isinstance(mark, Line):
            parts += _line(chart, mark)
        else:
            parts.append(_point(chart, mark))
    keys = "".join(
        f'<span><i style="background:{escape(color)}"></i>{escape(name)}</span>'
        for name, color in (chart.legend if len(chart.legend) > 1 else ())
    )
    side = " names" if chart.y.names else ""
    return (
        f'<div class="legend">{keys}</div><div class="plot{side}"><svg width="100%" height="{chart.height}">'
        f"{''.join(parts)}</svg></div>"
    )


def _grid(chart: Chart) -> Iterator[str]:
    for position, label in chart.y.ticks():
        y = _number(100 - chart.y.percent(position))
        if not chart.y.names:
            yield f'<line class="grid" x1="0" x2="100%" y1="{y}%" y2="{y}%"/>'
        yield f'<text class="tick" x="0" y="{y}%" dx="-6" dy=".35em" text-anchor="end">{escape(label)}</text>'
    for position, label in chart.x.ticks():
        x = _number(chart.x.percent(position))
        yield f'<line class="grid" x1="{x}%" x2="{x}%" y1="0" y2="100%"/>'
        yield f'<text class="tick" x="{x}%" y="100%" dy="1.4em" text-anchor="middle">{escape(label)}</text>'
    if chart.y.title:
        yield f'<text class="axis" x="0" y="0" dx="-44" dy="-.7em">{escape(chart.y.title)}</text>'
    if chart.x.title:
        yield f'<text class="axis" x="100%" y="100%" dy="2.8em" text-anchor="end">{escape(chart.x.title)}</text>'


def _box(chart: Chart, box: Box) -> str:
    left, right = sorted((chart.x.percent(box.x0), chart.x.percent(box.x1)))
    top, bottom = sorted((100 - chart.y.percent(box.y0), 100 - chart.y.percent(box.y1)))
    frame = f'x="{_number(left)}%" y="{_number(top)}%" width="{_number(right - left)}%" height="{_number(bottom - top)}%"'
    opacity = "" if box.opacity == 1 else f' opacity="{box.opacity:g}"'
    rectangle = f'<rect {frame} fill="{escape(box.color)}"{opacity}>{_title(box.tooltip)}</rect>'
    if not box.label:
        return rectangle
    return f'{rectangle}<svg {frame} class="label"><text x="5" y="1.3em">{escape(box.label)}</text>{_title(box.tooltip)}</svg>'


def _line(chart: Chart, line: Line) -> Iterator[str]:
    places = [(_number(chart.x.percent(x)), _number(100 - chart.y.percent(y))) for x, y in line.points]
    dotted = ' stroke-dasharray="3 3"' if line.is_dotted else ""
    for (x1, y1), (x2, y2) in pairwise(places):
        yield (
            f'<line x1="{x1}%" y1="{y1}%" x2="{x2}%" y2="{y2}%" stroke="{escape(line.color)}" '
            f'stroke-width="{line.width:g}"{dotted}/>'
        )


def _point(chart: Chart, point: Point) -> str:
    x, y = _number(chart.x.percent(point.x)), _number(100 - chart.y.percent(point.y))
    color, radius = escape(point.color), _number(point.radius)
    if point.is_diamond:
        side = _number(point.radius * 1.6)
        shape = (
            f'<svg x="{x}%" y="{y}%" overflow="visible"><rect width="{side}" height="{side}" fill="{color}" opacity=".75" '
            f'transform="rotate(45) translate(-{_number(point.radius * 0.8)} -{_number(point.radius * 0.8)})">'
            f"{_title(point.tooltip)}</rect></svg>"
        )
    else:
        shape = f'<circle cx="{x}%" cy="{y}%" r="{radius}" fill="{color}" opacity=".75">{_title(point.tooltip)}</circle>'
    if not point.label:
        return shape
    label = escape(point.label)
    return f'{shape}<text class="tick" x="{x}%" y="{y}%" dy="-{_number(point.radius + 5)}" text-anchor="middle">{label}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _number(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".")

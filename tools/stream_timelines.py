"""Draw timelines of command streams before and after the passes: ``python -m tools.stream_timelines``.

Writes ``docs/img/streams.svg``. Cycles are estimates of ``ethorch.npu.cycles``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ethorch.npu.cycles import Estimate, estimate
from ethorch.npu.ir import Stream

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "img" / "streams.svg"
CONVOLUTIONS, ELEMENTWISE, OTHERS, WAITS = (
    "convolutions",
    "elementwise operations and tables",
    "pools and copies",
    "waits for weights",
)
COLORS = {CONVOLUTIONS: "#0072B2", ELEMENTWISE: "#E69F00", OTHERS: "#8c8c8c", WAITS: "#D55E00"}
_LEFT, _WIDTH, _BAR, _ROW = 90, 800, 26, 40


@dataclass(frozen=True)
class Timeline:
    """Estimated operators of a stream, in order: (kind, cycles)."""

    name: str
    parts: tuple[tuple[str, int], ...]

    @property
    def cycles(self) -> int:
        return sum(cycles for _, cycles in self.parts)


def list_parts(stream: Stream, rated: Estimate) -> Iterator[tuple[str, int]]:
    """Iterate over (kind, cycles) of each operator, and of each wait for weights."""
    names = {op.key: op.name for op in stream.ops}
    for operator in rated.operators:
        kernels = {names[key] for key in operator.keys}
        if kernels & {"NPU_OP_CONV", "NPU_OP_DEPTHWISE"}:
            kind = CONVOLUTIONS
        else:
            kind = ELEMENTWISE if "NPU_OP_ELEMENTWISE" in kernels else OTHERS
        waits = max(operator.cycles - operator.computation.cycles, 0)
        yield kind, operator.cycles - waits
        if waits:
            yield WAITS, waits


def compile_timelines(model: str, target: str) -> tuple[Timeline, Timeline]:
    """Compile a network of the benchmarks with Vela's stream and with all passes."""
    from bench.passes import compile_streams, decode_all

    timelines = []
    for name, stream in (("Vela", "vela"), ("ethorch", "optimized")):
        models, regions = compile_streams(model, target, stream)
        parts = (part for s in decode_all(models) for part in list_parts(s, estimate(s, regions)))
        timelines.append(Timeline(name, tuple(parts)))
    return timelines[0], timelines[1]


def draw(timelines: Mapping[str, tuple[Timeline, Timeline]]) -> str:
    """Return an SVG with two bars per network, both in the scale of the first."""
    lines, y = [], 20
    for title, pair in timelines.items():
        lines.append(f'<text x="{_LEFT}" y="{y}" font-weight="bold">{escape(title)}</text>')
        for timeline in pair:
            y += 8
            lines.append(f'<text x="{_LEFT - 8}" y="{y + 18}" text-anchor="end">{timeline.name}</text>')
            scale, x = (_WIDTH - 120) / pair[0].cycles, float(_LEFT)
            for kind, cycles in timeline.parts:
                width = cycles * scale
                lines.append(f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_BAR}" fill="{COLORS[kind]}"/>')
                x += width
            lines.append(f'<text x="{x + 8:.0f}" y="{y + 18}">{timeline.cycles:,} cycles</text>')
            y += _BAR
        y += _ROW
    x = _LEFT
    for kind, color in COLORS.items():
        lines.append(f'<rect x="{x}" y="{y - 12}" width="12" height="12" fill="{color}"/>')
        lines.append(f'<text x="{x + 18}" y="{y - 1}">{kind}</text>')
        x += 30 + 7 * len(kind)
    size = f'width="{_LEFT + _WIDTH}" height="{y + 14}" viewBox="0 0 {_LEFT + _WIDTH} {y + 14}"'
    style = 'font-family="sans-serif" font-size="13" style="background:#fff"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *lines, "</svg>", ""])


def main() -> None:
    networks = {
        "bert, ethos-u55-128": ("bert", "ethos-u55-128"),
        "mobilenet_v1_025, ethos-u55-128": ("mobilenet_v1_025", "ethos-u55-128"),
    }
    IMAGE.write_text(draw({title: compile_timelines(*network) for title, network in networks.items()}), encoding="utf-8")


if __name__ == "__main__":
    main()

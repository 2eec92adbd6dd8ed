"""Charts of the HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ethorch.figures.layer import COMPUTE, CPU, MEMORY_KEYS, NPU, TRANSPOSES, Layer
from ethorch.figures.memory_report import MemoryReport, TensorPlace
from ethorch.figures.timeline import LANES, timeline
from ethorch.report.page.svg import Axis, Box, Chart, Line, Point
from ethorch.report.page.view import Module, cycles_known, operator_of, parts_of, short, tree
from ethorch.support.wording import kib

Data = Mapping[str, Any]
Charts = dict[str, Chart]

#: Color of each bound, from the color-blind-safe palette of Okabe and Ito.
COLORS = {
    COMPUTE: "#0072B2",
    "Sram": "#009E73",
    "Dram": "#D55E00",
    "OffChipFlash": "#E69F00",
    "OnChipFlash": "#B59B00",
    TRANSPOSES: "#CC79A7",
    CPU: "#6B7280",
    "": "#9CA3AF",
}
_LANE_COLORS = {NPU: COLORS[COMPUTE], "DMA": COLORS["OffChipFlash"], CPU: COLORS[CPU]}
_REGION_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_LARGEST = 20  # maximum number of bars in the chart of the largest layers
_LABEL = 26  # maximum number of characters of a name on an axis
_DEPTH = 6  # maximum number of rows in the chart of modules


def charts(data: Data, layers: Sequence[Layer], memory: MemoryReport, comparison: Data | None = None) -> Charts:
    """Return the charts, keyed by name. Charts whose figures are missing are omitted."""
    drawn: Charts = {}
    if cycles_known(layers):
        drawn["largest"] = largest(layers)
        drawn["in_order"] = in_order(layers)
        drawn["modules"] = modules(layers)
        drawn["timeline"] = lanes(layers, data["core_clock_hz"], data["cpu_clock_hz"])
    regions = sorted({tensor.region for tensor in memory.tensors})
    if regions:
        drawn["memory"] = use(memory, regions)
    for region in regions:
        drawn[f"region_{region}"] = places(memory, region)
    if (system := data.get("memory_system")) is not None and (chart := roofline(layers, system)) is not None:
        drawn["roofline"] = chart
    if comparison is not None and comparison.get("layers") and (chart := accuracy(comparison["layers"])) is not None:
        drawn["accuracy"] = chart
    return drawn


def largest(layers: Sequence[Layer]) -> Chart:
    """Return a bar chart of the layers with the most cycles."""
    top = sorted(layers, key=lambda layer: -(layer.cycles or 0))[:_LARGEST][::-1]
    bars = [Box(0, layer.cycles or 0, n - 0.35, n + 0.35, _color(_kind(layer)), _describe(layer)) for n, layer in enumerate(top)]
    names = tuple(f"{layer.index}  {_cut(layer.module) if layer.module else _shorten(layer.name)}" for layer in top)
    x = Axis("cycles", 0, 1.05 * max(layer.cycles or 0 for layer in top))
    y = Axis("", -0.6, len(top) - 0.4, names=names)
    return Chart(x, y, tuple(bars), _legend(top), height=24 * len(top) + 8)


def in_order(layers: Sequence[Layer]) -> Chart:
    """Return a bar chart of the cycles of all layers in execution order. Colors show the resource that limits each layer."""
    bars = [
        Box(layer.index - 0.45, layer.index + 0.45, 0, layer.cycles, _color(_kind(layer)), _describe(layer))
        for layer in layers
        if layer.cycles
    ]
    return Chart(_layer_axis(len(layers)), Axis("cycles", 0, 1.05 * max(bar.y1 for bar in bars)), tuple(bars), _legend(layers))


def modules(layers: Sequence[Layer]) -> Chart:
    """Return a chart with a row for each level of module nesting. The width of a module is proportional to its cycles."""
    root, bounds, boxes = tree(layers), _binds(layers), list[Box]()

    def add(node: Module, start: float, depth: int) -> None:
        cycles = node.cycles or 0
        color = _color(bounds.get(node.path, "")) if node.path else "#e5e7eb"
        tooltip = f"{node.path or node.name}\n{cycles:,} cycles" + ("" if node.share is None else f", {node.share:.1%}")
        boxes.append(Box(start, start + cycles, -depth, -depth - 0.94, color, tooltip, label=node.name))
        for child in sorted(node.children.values(), key=lambda module: -(module.cycles or 0)):
            if child.cycles and depth + 1 < _DEPTH:
                add(child, start, depth + 1)
                start += child.cycles

    add(root, 0, 0)
    rows = max(int(-box.y0) for box in boxes) + 1
    axis = Axis("cycles", 0, root.cycles or 1)
    return Chart(axis, Axis("", -rows, 0, names=("",)), tuple(boxes), height=28 * rows)


def _binds(layers: Sequence[Layer]) -> dict[str, str]:
    cycles_by_bound: dict[str, dict[str, int]] = {}
    for layer in layers:
        parts = parts_of(layer.module)
        for depth in range(len(parts) + 1):
            kinds = cycles_by_bound.setdefault(".".join(parts[:depth]), {})
            kinds[_kind(layer)] = kinds.get(_kind(layer), 0) + (layer.cycles or 0)
    return {path: max(kinds, key=kinds.__getitem__) for path, kinds in cycles_by_bound.items()}


def lanes(layers: Sequence[Layer], core_clock_hz: float, cpu_clock_hz: float) -> Chart:
    """Return the timeline of the NPU, the DMA and the CPU."""
    scale, unit = (1e3 / core_clock_hz, "ms") if core_clock_hz else (1.0, "cycles")
    by_index = {layer.index: layer for layer in layers}
    events = timeline(layers, cpu_clock_hz / core_clock_hz if core_clock_hz else 1.0)
    used_lanes = [lane for lane in LANES[::-1] if any(event.lane == lane for event in events)]
    boxes = []
    for event in events:
        row, start = used_lanes.index(event.lane), event.start_cycles * scale
        tooltip = ("weights for " if event.lane == "DMA" else "") + _describe(by_index[event.layer])
        boxes.append(Box(start, start + event.duration_cycles * scale, row - 0.35, row + 0.35, _LANE_COLORS[event.lane], tooltip))
    end = max((box.x1 for box in boxes), default=1)
    y = Axis("", -0.6, len(used_lanes) - 0.4, names=tuple(used_lanes))
    return Chart(Axis(f"time in {unit}", 0, end or 1), y, tuple(boxes), height=50 * len(used_lanes))


def use(memory: MemoryReport, regions: Sequence[str]) -> Chart:
    """Return a chart of the bytes in use in each region during each layer."""
    boxes, highest = list[Box](), 0.0
    for number, region in enumerate(regions):
        color = _REGION_COLORS[number % len(_REGION_COLORS)]
        for layer, size in memory.use_over_time(region):
            tooltip = f"{region}, layer {layer}: {kib(size)}"
            boxes.append(Box(layer - 0.5, layer + 0.5, 0, size / 1024, color, tooltip, 0.45))
            highest = max(highest, size / 1024)
    legend = tuple((region, _REGION_COLORS[n % len(_REGION_COLORS)]) for n, region in enumerate(regions))
    return Chart(_layer_axis(memory.layer_count), Axis("KiB in use", 0, 1.05 * highest or 1), tuple(boxes), legend)


def places(memory: MemoryReport, region: str) -> Chart:
    """Return a chart of the addresses and lifetimes of the tensors in a region. Tensors in use at the peak are highlighted."""
    owners = set(memory.peak_owners(region))
    tensors = [tensor for tensor in memory.tensors if tensor.region == region]
    groups = {"in use at the peak": COLORS["Dram"], "not in use at the peak": COLORS[COMPUTE]}
    boxes = [
        Box(
            tensor.first - 0.48,
            tensor.last + 0.48,
            tensor.address / 1024,
            tensor.end / 1024,
            groups["in use at the peak" if tensor in owners else "not in use at the peak"],
            _describe_tensor(tensor),
            0.75,
        )
        for tensor in tensors
    ]
    y = Axis("address in KiB", 0, 1.02 * max(tensor.end for tensor in tensors) / 1024 or 1)
    return Chart(_layer_axis(memory.layer_count), y, tuple(boxes), tuple(groups.items()))


def roofline(layers: Sequence[Layer], system: Data) -> Chart | None:
    """Return a roofline chart: for each layer, MACs per cycle against MACs per byte accessed in its slowest memory.

    Return None if no layer has the required figures.
    """
    peak, bandwidths = system["macs_per_cycle"], system["bytes_per_cycle"]
    points: dict[str, list[tuple[float, float, Layer]]] = {}
    for layer in layers:
        memory = max(layer.access_cycles, key=layer.access_cycles.__getitem__, default="")
        size = layer.read_bytes.get(memory, 0) + layer.written_bytes.get(memory, 0)
        if layer.where == NPU and layer.macs and layer.cycles and size and memory in bandwidths:
            points.setdefault(memory, []).append((layer.macs / size, layer.macs / layer.cycles, layer))
    if not points:
        return None
    xs = [x for part in points.values() for x, _, _ in part]
    ys = [y for part in points.values() for _, y, _ in part]
    left, right = min(xs) / 2, max(*xs, *(2 * peak / bandwidths[memory] for memory in points)) * 2
    marks: list[Box | Line | Point] = []
    legend = []
    for memory in (name for name in MEMORY_KEYS if name in points):
        ridge, rate = peak / bandwidths[memory], bandwidths[memory]
        roof = [x for x in (left, ridge, right) if left <= x <= right]
        marks.append(Line([(x, min(peak, x * rate)) for x in roof], COLORS[memory], is_dotted=True))
        largest_share = max(layer.share or 0 for _, _, layer in points[memory]) or 1
        marks += [
            Point(
                x,
                y,
                3 + 7 * ((layer.share or 0) / largest_share) ** 0.5,
                COLORS[memory],
                f"{_describe(layer)}\n{x:.3g} MACs per byte, {y:.3g} MACs per cycle",
                is_diamond=layer.bound != COMPUTE,
            )
            for x, y, layer in points[memory]
        ]
        legend.append((f"{memory}, {rate:g} {'byte' if rate == 1 else 'bytes'} per cycle", COLORS[memory]))
    marks.append(Line([(left, peak), (right, peak)], "#111827", 1))
    legend.append((f"{peak} multipliers", "#111827"))
    x_axis = Axis("MACs per byte of the slowest memory", left, right, is_logarithmic=True)
    return Chart(
        x_axis, Axis("MACs per cycle", min(ys) / 2, 2 * max(peak, *ys), is_logarithmic=True), tuple(marks), tuple(legend), 380
    )


def accuracy(layers: Sequence[Data]) -> Chart | None:
    """Return a chart of each operator's SQNR relative to the float model, or None if no operator has an SQNR."""
    series = (
        ("float_fake_db", "fake-quantized, accumulated noise", COLORS[COMPUTE], True, False),
        ("float_npu_db", "NPU, accumulated noise", COLORS["Dram"], True, True),
        ("own_db", "noise added by the operator", COLORS["Sram"], False, True),
    )
    marks: list[Box | Line | Point] = []
    figures = []
    for key, _, color, has_line, has_points in series:
        finite = [(n, layer[key]) for n, layer in enumerate(layers) if layer[key] is not None]
        figures += [figure for _, figure in finite]
        if has_line:
            marks.append(Line(finite, color))
        if has_points:
            marks += [Point(n, figure, 3, color, _describe_noise(layers[n])) for n, figure in finite]
    if not figures:
        return None
    margin = 0.08 * (max(figures) - min(figures)) or 1
    y = Axis("SQNR in dB", min(figures) - margin, max(figures) + margin)
    return Chart(
        Axis("operator", -0.5, len(layers) - 0.5), y, tuple(marks), tuple((name, color) for _, name, color, _, _ in series)
    )


def _describe_noise(layer: Data) -> str:
    name = _cut(f"{short(layer['operator'])} {layer['module']}".strip())
    return (
        f"{name}\n{layer['source']}\nNPU {_db(layer['float_npu_db'])}, fake-quantized {_db(layer['float_fake_db'])}, "
        f"operator alone {_db(layer['own_db'])}"
    )


def _db(level: float | None) -> str:
    return "unknown" if level is None else f"{level:.1f} dB"


def _layer_axis(count: int) -> Axis:
    return Axis("layer", -0.5, max(count, 1) - 0.5)


def _legend(layers: Sequence[Layer]) -> tuple[tuple[str, str], ...]:
    kinds = dict.fromkeys(_kind(layer) for layer in layers if layer.cycles)
    return tuple((kind or "unknown", _color(kind)) for kind in kinds)


def _color(kind: str) -> str:
    return COLORS.get(kind, COLORS[""])


def _kind(layer: Layer) -> str:
    return CPU if layer.where == CPU else layer.bound


def _describe(layer: Layer) -> str:
    place = " ".join(filter(None, (layer.module, f"({layer.source})" if layer.source else "")))
    lines = [f"{layer.index}: {operator_of(layer)}", place or layer.name]
    if layer.cycles is not None:
        share = "" if layer.share is None else f", {layer.share:.1%}"
        lines.append(f"{layer.cycles:,} cycles{share}" + (f", {layer.macs:,} MACs" if layer.macs else ""))
    if layer.bound:
        lines.append(f"bound by {layer.bound}")
    return "\n".join(lines)


def _describe_tensor(tensor: TensorPlace) -> str:
    lines = (
        f"{tensor.name}: {kib(tensor.size_bytes)} at {tensor.address:,}",
        f"{tensor.dtype}{list(tensor.shape)}" if tensor.dtype else "",
        tensor.module,
        f"layers {tensor.first} to {tensor.last}",
    )
    return "\n".join(filter(None, lines))


def _shorten(name: str) -> str:
    name = name.replace("quantize_per_tensor", "quantize")
    return name if len(name) <= _LABEL else name[: _LABEL - 1] + "…"


def _cut(name: str) -> str:
    return name if len(name) <= _LABEL else "…" + name[1 - _LABEL :]

"""Charts of the report as data for plotly.js. Plotly's Python package, which takes 0.4 s, is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ethorch.figures.layer import COMPUTE, CPU, MEMORY_KEYS, NPU, TRANSPOSES, Layer
from ethorch.figures.memory_report import MemoryReport, TensorPlace
from ethorch.figures.timeline import LANES, timeline
from ethorch.report.page.view import Module, cycles_known, operator_of, parts_of, short, tree
from ethorch.support.wording import kib

Data = Mapping[str, Any]
Figure = dict[str, Any]
Figures = dict[str, Figure]

#: Color of each bound, from the palette of Okabe and Ito for color-blind readers.
COLOURS = {
    COMPUTE: "#0072B2",
    "Sram": "#009E73",
    "Dram": "#D55E00",
    "OffChipFlash": "#E69F00",
    "OnChipFlash": "#B59B00",
    TRANSPOSES: "#CC79A7",
    CPU: "#6B7280",
    "": "#9CA3AF",
}
_LANE_COLOURS = {NPU: COLOURS[COMPUTE], "DMA": COLOURS["OffChipFlash"], CPU: COLOURS[CPU]}
_REGION_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_LARGEST = 20  # bars of the chart of the largest layers
_LABEL = 26  # characters of a name on an axis
_AXIS = {"gridcolor": "#e5e7eb", "zeroline": False, "automargin": True}


def charts(data: Data, layers: Sequence[Layer], memory: MemoryReport, comparison: Data | None = None) -> Figures:
    """Return figures by name; charts without sufficient data are omitted."""
    figures: Figures = {}
    if cycles_known(layers):
        figures["largest"] = largest(layers)
        figures["in_order"] = in_order(layers)
        figures["treemap"] = treemap(layers)
        figures["timeline"] = lanes(layers, data["core_clock_hz"])
    regions = sorted({tensor.region for tensor in memory.tensors})
    if regions:
        figures["memory"] = use(memory, regions)
    for region in regions:
        figures[f"region_{region}"] = places(memory, region)
    if (system := data.get("memory_system")) is not None and (chart := roofline(layers, system)) is not None:
        figures["roofline"] = chart
    if comparison is not None and comparison.get("layers"):
        figures["accuracy"] = accuracy(comparison["layers"])
    return figures


def largest(layers: Sequence[Layer]) -> Figure:
    """Return bars of the layers with the most cycles."""
    top = sorted(layers, key=lambda layer: -(layer.cycles or 0))[:_LARGEST][::-1]
    bars = _trace(
        "bar",
        y=[f"{layer.index}  {_cut(layer.module or layer.name)}" for layer in top],
        x=[layer.cycles or 0 for layer in top],
        orientation="h",
        marker={"color": [COLOURS.get(_kind(layer), COLOURS[""]) for layer in top]},
        hovertext=[_hover(layer) for layer in top],
        hoverinfo="text",
    )
    return _figure([bars], "cycles", "", {"yaxis": {"ticklabelstandoff": 4}}, height=70 + 22 * len(top))


def in_order(layers: Sequence[Layer]) -> Figure:
    """Return the cycles of each layer in execution order, colored by bound."""
    traces = []
    for kind in dict.fromkeys(_kind(layer) for layer in layers):
        part = [layer for layer in layers if _kind(layer) == kind and layer.cycles]
        if part:
            traces.append(
                _trace(
                    "bar",
                    x=[layer.index for layer in part],
                    y=[layer.cycles for layer in part],
                    name=escape(kind, quote=False) or "unknown",
                    marker={"color": COLOURS.get(kind, COLOURS[""]), "line": {"width": 0}},
                    hovertext=[_hover(layer) for layer in part],
                    hoverinfo="text",
                )
            )
    return _figure(traces, "layer", "cycles", {"barmode": "stack", "bargap": 0.1})


def treemap(layers: Sequence[Layer]) -> Figure:
    """Return the cycles by module as nested areas."""
    ids, labels, parents, values, colours = [], [], [], [], []
    binds = _binds(layers)

    def add(node: Module, parent: str) -> None:
        if not node.cycles:
            return
        id = f"module {node.path}" if node.path else "program"
        ids.append(id)
        labels.append(escape(node.name, quote=False))
        parents.append(parent)
        values.append(node.cycles)
        colours.append(COLOURS.get(binds.get(node.path, ""), COLOURS[""]) if node.path else "#e5e7eb")
        for child in node.children.values():
            add(child, id)

    add(tree(layers), "")
    for layer in layers:
        if not layer.module and layer.cycles:
            ids.append(f"layer {layer.index}")
            labels.append(escape(operator_of(layer), quote=False))
            parents.append("program")
            values.append(layer.cycles)
            colours.append(COLOURS.get(_kind(layer), COLOURS[""]))
    trace = _trace(
        "treemap",
        ids=ids,
        labels=labels,
        parents=parents,
        values=values,
        branchvalues="total",
        marker={"colors": colours, "line": {"color": "#fff", "width": 1}},
        maxdepth=5,
        tiling={"pad": 2},
        texttemplate="%{label}<br>%{percentRoot:.1%}",
        hovertemplate="%{label}<br>%{value:,} cycles, %{percentRoot:.1%}<extra></extra>",
        pathbar={"visible": True},
    )
    return _figure([trace], "", "", {"margin": {"l": 0, "r": 0, "t": 24, "b": 0}}, height=420)


def _binds(layers: Sequence[Layer]) -> dict[str, str]:
    """Return the bound of most cycles of each module, including submodules."""
    cycles_by_bound: dict[str, dict[str, int]] = {}
    for layer in layers:
        parts = parts_of(layer.module)
        for depth in range(len(parts) + 1):
            kinds = cycles_by_bound.setdefault(".".join(parts[:depth]), {})
            kinds[_kind(layer)] = kinds.get(_kind(layer), 0) + (layer.cycles or 0)
    return {path: max(kinds, key=kinds.__getitem__) for path, kinds in cycles_by_bound.items()}


def lanes(layers: Sequence[Layer], core_clock_hz: float) -> Figure:
    """Return the timeline of NPU, DMA and CPU."""
    scale, unit = (1e6 / core_clock_hz, "µs") if core_clock_hz else (1.0, "cycles")
    by_index = {layer.index: layer for layer in layers}
    events = timeline(layers)
    traces = []
    for lane in LANES:
        mine = [event for event in events if event.lane == lane]
        if mine:
            traces.append(
                _trace(
                    "bar",
                    y=[lane] * len(mine),
                    base=[round(event.start_cycles * scale, 4) for event in mine],
                    x=[round(event.duration_cycles * scale, 4) for event in mine],
                    orientation="h",
                    name=lane,
                    marker={"color": _LANE_COLOURS[lane], "line": {"color": "#fff", "width": 0.4 if len(mine) < 400 else 0}},
                    hovertext=[("weights of " if lane == "DMA" else "") + _hover(by_index[event.layer]) for event in mine],
                    hoverinfo="text",
                )
            )
    used_lanes = [lane for lane in LANES[::-1] if any(event.lane == lane for event in events)]
    layout = {"barmode": "overlay", "bargap": 0.3, "yaxis": {"categoryorder": "array", "categoryarray": used_lanes}}
    return _figure(traces, f"time in {unit}", "", layout, height=240)


def use(memory: MemoryReport, regions: Sequence[str]) -> Figure:
    """Return the live bytes of each region during each layer."""
    traces = []
    for number, region in enumerate(regions):
        points = memory.use_over_time(region)
        traces.append(
            _trace(
                "scatter",
                x=[layer for layer, _ in points],
                y=[size / 1024 for _, size in points],
                name=escape(region, quote=False),
                mode="lines",
                line={"shape": "hvh", "width": 2, "color": _REGION_COLOURS[number % len(_REGION_COLOURS)]},
                fill="tozeroy",
                hovertemplate="layer %{x}: %{y:,.1f} KiB<extra>" + escape(region) + "</extra>",
            )
        )
    return _figure(traces, "layer", "KiB alive")


def places(memory: MemoryReport, region: str) -> Figure:
    """Return the addresses of a region over the layers, with a box per tensor and another color for the peak."""
    owners = set(memory.peak_owners(region))
    traces = []
    tensors = [tensor for tensor in memory.tensors if tensor.region == region]
    for name, colour, part in (
        ("at the peak", COLOURS["Dram"], [tensor for tensor in tensors if tensor in owners]),
        ("others", COLOURS[COMPUTE], [tensor for tensor in tensors if tensor not in owners]),
    ):
        if part:
            traces.append(
                _trace(
                    "bar",
                    x=[(tensor.first + tensor.last) / 2 for tensor in part],
                    width=[tensor.last - tensor.first + 1 for tensor in part],
                    base=[tensor.address / 1024 for tensor in part],
                    y=[tensor.size_bytes / 1024 for tensor in part],
                    name=name,
                    marker={"color": colour, "opacity": 0.75, "line": {"color": "#fff", "width": 0.5}},
                    hovertext=[_of_tensor(tensor) for tensor in part],
                    hoverinfo="text",
                )
            )
    layout = {"barmode": "overlay", "xaxis": {"range": [-0.5, memory.layer_count - 0.5]}}
    return _figure(traces, "layer", "address in KiB", layout)


def roofline(layers: Sequence[Layer], system: Data) -> Figure | None:
    """Return MACs per cycle over MACs per byte of each layer's slowest memory, with the limits of multipliers and memories."""
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
    left, right = min(xs) / 2, max(*xs, *(2 * peak / bandwidths[memory] for memory in points)) * 2
    traces = []
    for memory in (name for name in MEMORY_KEYS if name in points):
        ridge = peak / bandwidths[memory]
        roof = [x for x in (left, ridge, right) if left <= x <= right]
        traces.append(
            _trace(
                "scatter",
                x=roof,
                y=[min(peak, x * bandwidths[memory]) for x in roof],
                mode="lines",
                line={"color": COLOURS[memory], "dash": "dot", "width": 1.5},
                hoverinfo="skip",
                showlegend=False,
            )
        )
        part = points[memory]
        largest_share = max(layer.share or 0 for _, _, layer in part) or 1
        traces.append(
            _trace(
                "scatter",
                x=[x for x, _, _ in part],
                y=[y for _, y, _ in part],
                mode="markers",
                name=f"{memory}, {bandwidths[memory]:g} {'byte' if bandwidths[memory] == 1 else 'bytes'} a cycle",
                marker={
                    "color": COLOURS[memory],
                    "opacity": 0.75,
                    "size": [6 + 14 * ((layer.share or 0) / largest_share) ** 0.5 for _, _, layer in part],
                    "symbol": ["circle" if layer.bound == COMPUTE else "diamond" for _, _, layer in part],
                },
                hovertext=[f"{_hover(layer)}<br>{x:.3g} MACs a byte, {y:.3g} MACs a cycle" for x, y, layer in part],
                hoverinfo="text",
            )
        )
    line = {"color": "#111827", "width": 1}
    traces.append(
        _trace("scatter", x=[left, right], y=[peak, peak], name=f"{peak} multipliers", mode="lines", hoverinfo="skip", line=line)
    )
    axis = {"type": "log", "dtick": 1}
    return _figure(traces, "MACs a byte of the slowest memory", "MACs a cycle", {"xaxis": axis, "yaxis": axis}, height=420)


def accuracy(layers: Sequence[Data]) -> Figure:
    """Return the SQNR of each operator against the float model: all noise so far, and its own."""
    names = [_cut(f"{short(layer['operator'])} {layer['module']}".strip()) for layer in layers]
    hover = [
        f"{escape(name)}<br>{escape(layer['source'])}<br>NPU {_db(layer['float_npu_db'])}, "
        f"fake-quantized {_db(layer['float_fake_db'])}, by itself {_db(layer['own_db'])}"
        for name, layer in zip(names, layers, strict=True)
    ]
    known_layers = (
        ("float_npu_db", "NPU, all noise so far", "lines+markers", COLOURS["Dram"]),
        ("float_fake_db", "fake-quantized", "lines", COLOURS[COMPUTE]),
        ("own_db", "the operator by itself", "markers", COLOURS["Sram"]),
    )
    traces = [
        _trace(
            "scatter",
            x=list(range(len(layers))),
            y=[layer[key] for layer in layers],
            mode=mode,
            name=name,
            line={"color": colour, "width": 1.5},
            marker={"color": colour, "size": 6},
            hovertext=hover,
            hoverinfo="text",
            connectgaps=True,
        )
        for key, name, mode, colour in known_layers
    ]
    return _figure(traces, "operator", "SQNR in dB")


def _db(value: float | None) -> str:
    return "no figure" if value is None else f"{value:.1f} dB"


def _kind(layer: Layer) -> str:
    """Return the key of a layer's color."""
    return CPU if layer.where == CPU else layer.bound


def _hover(layer: Layer) -> str:
    """Return the lines of a tooltip, escaped, because Plotly interprets some tags."""
    place = " ".join(filter(None, (layer.module, f"({layer.source})" if layer.source else "")))
    lines = [f"{layer.index}: {operator_of(layer)}", place or layer.name]
    if layer.cycles is not None:
        share = "" if layer.share is None else f", {layer.share:.1%}"
        lines.append(f"{layer.cycles:,} cycles{share}" + (f", {layer.macs:,} MACs" if layer.macs else ""))
    if layer.bound:
        lines.append(f"bound by {layer.bound}")
    return "<br>".join(escape(line, quote=False) for line in lines)


def _of_tensor(tensor: TensorPlace) -> str:
    lines = (
        f"{tensor.name}: {kib(tensor.size_bytes)} at {tensor.address:,}",
        f"{tensor.dtype}{list(tensor.shape)}" if tensor.dtype else "",
        tensor.module,
        f"layers {tensor.first} to {tensor.last}",
    )
    return "<br>".join(escape(line, quote=False) for line in lines if line)


def _cut(name: str) -> str:
    """Return the end of a long name, which is more specific than its beginning."""
    return escape(name if len(name) <= _LABEL else "…" + name[1 - _LABEL :], quote=False)


def _trace(kind: str, **attributes: Any) -> dict[str, Any]:
    """Return a trace: a kind of chart with its values."""
    return {"type": kind, **attributes}


def _figure(traces: Sequence[Any], x: str, y: str, layout: Data | None = None, height: int = 340) -> Figure:
    """Return a figure with the layout that all charts share.

    Args:
        traces: The traces, as ``_trace`` returns them.
        x: Title of the x axis.
        y: Title of the y axis.
        layout: Attributes to add to the layout; those of an axis are added to the axis.
        height: Height in pixels.
    """
    axes = {name: {"title": {"text": text}, **_AXIS} for name, text in (("xaxis", x), ("yaxis", y))}
    shared = {
        "height": height,
        "margin": {"l": 56, "r": 12, "t": 32, "b": 44},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#1f2937"},
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        "hoverlabel": {"align": "left"},
        "showlegend": len({trace.get("name") for trace in traces} - {None}) > 1,
    }
    extra = dict(layout or {})
    axes = {name: {**axis, **extra.pop(name, {})} for name, axis in axes.items()}
    return {"data": list(traces), "layout": {**shared, **axes, **extra}}

"""The template variables of the HTML report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ethorch.figures.layer import CPU, NPU, Layer
from ethorch.figures.memory_report import MemoryReport
from ethorch.lower.partition_report import group_refusals
from ethorch.report.advice import advice
from ethorch.report.reproduce import MODEL, command
from ethorch.report.summary import budget_rows, head, rows
from ethorch.report.verdict import verdicts
from ethorch.support.wording import kib

Data = Mapping[str, Any]
_LIMITS = ("ram", "flash", "latency_ms", "min_sqnr_db")  # settings
_DEPTH = 16  # maximum levels of nested modules; layers of deeper modules are counted for the ancestor at this level
_STATES = {"yes": "yes", "no": "no", "unknown": "unknown", "open": "no limit"}


def view(
    data: Data, layers: Sequence[Layer], memory: MemoryReport, comparison: Data | None, model: Sequence[str]
) -> dict[str, Any]:
    """Return the template's variables. See :func:`ethorch.report.page.page` for the arguments."""
    return {
        "head": head(data),
        "verdicts": [(v.question, v.state, _STATES[v.state], v.answer) for v in verdicts(data)],
        "summary": list(rows(data)),
        "budgets": list(budget_rows(data)),
        "layers": [_layer(layer) for layer in layers],
        "bounds": sorted({layer.bound for layer in layers} - {""}),
        "cycles_known": cycles_known(layers),
        "segments": segments(layers),
        "tree": tree(layers),
        "refusals": group_refusals((*data["cpu"], *data["without_kernel"])),
        "binding": binding(layers),
        "without_macs": sum(not layer.macs for layer in layers if layer.where == NPU),
        "system": data.get("memory_system"),
        "components": [
            (part.name, part.memory, kib(part.ram_bytes), kib(part.flash_bytes), part.note) for part in memory.components
        ],
        "totals": (kib(memory.ram_bytes), kib(memory.flash_bytes)),
        "peaks": [_peak(memory, region) for region in sorted({tensor.region for tensor in memory.tensors})],
        "accuracy": None if comparison is None else _accuracy(comparison),
        "advice": advice(data),
        "settings": None if data["settings"] is None else [(k, _setting(k, v)) for k, v in data["settings"].items()],
        "command": None if data["settings"] is None else command(data["settings"], model),
        "unnamed": MODEL in model,
        "versions": list(data["versions"].items()),
    }


def cycles_known(layers: Sequence[Layer]) -> bool:
    """Return True if the cycles of every layer are known and not all are 0."""
    return any(layer.cycles for layer in layers) and all(layer.cycles is not None for layer in layers)


def short(name: str) -> str:
    """Return the base name of an operator, e.g. ``conv2d`` for ``aten.conv2d.default``."""
    for prefix in ("aten.", "quantized_decomposed.", "quantized_decomposed::", "aten::"):
        name = name.removeprefix(prefix)
    for suffix in (".default", ".out"):
        name = name.removesuffix(suffix)
    return name


def operator_of(layer: Layer) -> str:
    """Return the PyTorch operators of a layer, or the NPU operation if they are unknown."""
    return ", ".join(map(short, layer.operators)) or layer.operator


def _layer(layer: Layer) -> dict[str, Any]:
    read, written = sum(layer.read_bytes.values()), sum(layer.written_bytes.values())
    return {
        "index": layer.index,
        "where": layer.where if layer.delegate is None else f"{layer.where} {layer.delegate}",
        "side": layer.where,
        "operator": operator_of(layer),
        "kind": layer.operator,
        "name": layer.name,
        "module": layer.module,
        "source": layer.source,
        "cycles": layer.cycles,
        "share": layer.share,
        "macs": layer.macs,
        "utilization": layer.utilization,
        "bound": f"in layer {layer.fused_into}" if layer.fused_into is not None else layer.bound,
        "shape": "x".join(map(str, layer.ofm_shape)),
        "traffic": ", ".join(f"{name} {kib(size)}" for name, size in _traffic(layer).items()),
        "bytes": read + written,
        "staging": layer.staging_bytes,
    }


def _traffic(layer: Layer) -> dict[str, int]:
    names = dict.fromkeys((*layer.read_bytes, *layer.written_bytes))
    return {name: layer.read_bytes.get(name, 0) + layer.written_bytes.get(name, 0) for name in names}


@dataclass(frozen=True)
class Segment:
    """Consecutive layers that run on the CPU or in one delegate."""

    where: str
    delegate: int | None
    layers: int
    cycles: int | None
    operators: str


def segments(layers: Sequence[Layer]) -> list[Segment]:
    """Group the layers of a program into segments, in execution order."""
    runs: list[list[Layer]] = []
    for layer in layers:
        if runs and (runs[-1][0].where, runs[-1][0].delegate) == (layer.where, layer.delegate):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [
        Segment(
            part[0].where, part[0].delegate, len(part), _sum(part), ", ".join(dict.fromkeys(short(x.operator) for x in part[:20]))
        )
        for part in runs
    ]


def _sum(layers: Iterable[Layer]) -> int | None:
    cycles = [layer.cycles for layer in layers]
    return None if None in cycles else sum(c or 0 for c in cycles)


@dataclass
class Module:
    """A module and its submodules.

    Attributes:
        path, name: Full path, and its last component.
        npu, cpu: Numbers of NPU layers and CPU layers, including those of submodules.
        cycles: Total cycles of all layers in the module, or None if a layer's cycles are unknown.
        share: Share of the program's cycles, from 0 to 1.
    """

    path: str
    name: str
    npu: int = 0
    cpu: int = 0
    cycles: int | None = 0
    share: float | None = None
    children: dict[str, Module] = field(default_factory=dict)


def parts_of(module: str) -> list[str]:
    """Split a module path into names, outermost first."""
    return module.split(".")[:_DEPTH] if module else []


def tree(layers: Sequence[Layer]) -> Module:
    """Return the tree of modules. Layers without a module are counted only in the root."""
    root = Module("", "program")
    for layer in layers:
        nodes = [root]
        path = ""
        for part in parts_of(layer.module):
            path = f"{path}.{part}" if path else part
            nodes.append(nodes[-1].children.setdefault(part, Module(path, part)))
        for node in nodes:
            node.npu += layer.where == NPU
            node.cpu += layer.where == CPU
            node.cycles = None if node.cycles is None or layer.cycles is None else node.cycles + layer.cycles
    _share(root, root.cycles)
    return root


def _share(node: Module, total: int | None) -> None:
    node.share = None if not total or node.cycles is None else node.cycles / total
    for child in node.children.values():
        _share(child, total)


def binding(layers: Sequence[Layer]) -> list[tuple[str, int, int, float]]:
    """Return (bound, number of layers, cycles, share of the NPU's cycles) for each limiting resource, most cycles first."""
    total = sum(layer.cycles or 0 for layer in layers if layer.where == NPU)
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.where == NPU and layer.bound:
            groups.setdefault(layer.bound, []).append(layer)
    rows = [(name, len(part), sum(x.cycles or 0 for x in part)) for name, part in groups.items()]
    return sorted(((name, count, c, c / total if total else 0.0) for name, count, c in rows), key=lambda row: -row[2])


def _peak(memory: MemoryReport, region: str) -> dict[str, Any]:
    owners = memory.peak_owners(region)
    return {
        "region": region,
        "size": kib(memory.regions.get(region)),
        "layer": memory.peak_layer(region),
        "held": kib(sum(tensor.size_bytes for tensor in owners)),
        "owners": [
            (x.name, kib(x.size_bytes), "x".join(map(str, x.shape)), x.dtype, x.module, x.source, f"{x.first} to {x.last}")
            for x in owners[:20]
        ],
        "more": max(0, len(owners) - 20),
    }


def _accuracy(comparison: Data) -> dict[str, Any]:
    return {
        "samples": comparison.get("samples"),
        "missing": comparison.get("missing") or "",
        "exact": comparison.get("bit_exact"),
        "outputs": [(n, x["quantized_db"], x["npu_db"], x["agreement_db"]) for n, x in enumerate(comparison["outputs"])],
        "layers": [
            {
                **layer,
                "operator": "+".join(map(short, (*layer["fused"], layer["operator"]))),
                "where": NPU if layer["on_npu"] else CPU,
                "diverges": layer["own_steps"] is not None and layer["own_steps"] > layer["allowed_steps"],
            }
            for layer in comparison.get("layers", ())
        ],
        "first": _name_operator(comparison, "first_divergence"),
        "loss": _name_operator(comparison, "largest_loss"),
    }


def _name_operator(comparison: Data, key: str) -> str:
    for layer in comparison.get("layers", ()):
        if layer["node"] == comparison.get(key):
            place = " ".join(filter(None, (layer["module"], f"({layer['source']})" if layer["source"] else "")))
            return f"{short(layer['operator'])}{f' at {place}' if place else ''}"
    return ""


def _setting(name: str, value: Any) -> str:
    if value is None:
        return "no limit" if name in _LIMITS else "target default"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

"""Advice on making a program smaller or faster, based on the result of ``Program.to_json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import prod
from typing import Any

from ethorch.figures.layer import CPU, MEMORY_KEYS, NPU, TRANSPOSES, Layer
from ethorch.figures.memory_report import MemoryReport, TensorPlace, occupied_bytes
from ethorch.support.errors import FormatError
from ethorch.support.wording import count_noun, kib

Data = Mapping[str, Any]

_LEAST = 0.02  #: Minimum share of the cycles or of the RAM for which advice is returned.
_QUANTIZERS = ("quantized_decomposed::quantize_per_tensor", "quantized_decomposed::dequantize_per_tensor")
_CHANNELS = 16  #: Number of channels that the NPU computes in parallel.
_FEW_POSITIONS = 64  #: In a feature map with fewer positions, decoding a weight takes longer than the products with the weight.
_MINOR = 0.1  #: Minimum share of the idle cycles for which a remedy is listed.
_WITH_WEIGHTS = ("Conv", "FullyConnected")  # Vela's names
_NAMED = 3  # maximum number of module or operator names in a sentence


@dataclass(frozen=True)
class Advice:
    """A recommended change.

    Attributes:
        id: Stable identifier.
        figure: Current cost, with a unit.
        text: Reason and remedy.
        weight: Rank from 0 to 1, based on the affected share of the program's cycles or RAM.
        is_saving: Whether the change can save the whole cost in ``figure``.
    """

    id: str
    figure: str
    text: str
    weight: float
    is_saving: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)


def advice(data: Data) -> list[Advice]:
    """Return the advice that applies to a program, largest weight first.

    Args:
        data: Result of ``Program.to_json``.

    Raises:
        FormatError: ``data`` has an unexpected format.
    """
    try:
        layers = [Layer.from_json(layer) for layer in data["layers"]]
        memory = MemoryReport.from_json(data["memory"])
        entries = [
            *_on_cpu(data, layers),
            *_float_ends(data, layers),
            *_transposes(data, layers),
            *_waiting(data, layers, memory),
            *_idle(data, layers),
            *_peak(data, layers, memory),
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"expected the result of Program.to_json, got invalid data ({error}).") from None
    return sorted(entries, key=lambda entry: -entry.weight)


def _cycles(layers: Sequence[Layer]) -> int:
    return sum(layer.cycles or 0 for layer in layers)


def _share(part: int, layers: Sequence[Layer]) -> float:
    return part / total if (total := _cycles(layers)) else 0.0


def _on_cpu(data: Data, layers: Sequence[Layer]) -> Iterator[Advice]:
    refusals = sorted((*data["cpu"], *data["without_kernel"]), key=lambda refusal: refusal["id"])
    for id, group in groupby(refusals, key=lambda refusal: refusal["id"]):
        rows = list(group)
        names = list(dict.fromkeys(row["operator"] for row in rows))
        places = list(dict.fromkeys(row["module"] or row["source"] for row in rows if row["module"] or row["source"]))
        origins = {(row["operator"], row["module"], row["source"]) for row in rows}
        spent = _cycles(
            [x for x in layers if x.where == CPU and any((name, x.module, x.source) in origins for name in x.operators)]
        )
        share = _share(spent, layers)
        figure = count_noun(len(rows), "operator") + (f", {spent:,} CPU cycles ({share:.1%})" if spent else "")
        where = f" at {_some(places)}" if places else ""
        yield Advice(
            f"cpu.{id}",
            figure,
            f"{_some(names)}{where}: {_sentence(rows[0]['reason'])} {rows[0]['remedy']}".rstrip(),
            max(share, _LEAST),
        )


def _float_ends(data: Data, layers: Sequence[Layer]) -> Iterator[Advice]:
    settings = data["settings"]
    quantizers = [x for x in layers if x.where == CPU and x.operator.startswith(_QUANTIZERS)]
    if settings is None or settings["io"] != "float32" or not quantizers:
        return
    shapes = [tuple(info["shape"]) for info in (*data["inputs"], *data["outputs"]) if info["dtype"] == "float32"]
    ends = [x for x in quantizers if (x.ifm_shapes[:1] or ((),))[0] in shapes or x.ofm_shape in shapes]
    size, spent = sum(4 * prod(x.ofm_shape) for x in ends), _cycles(ends)
    ram, cycles = size / data["ram_bytes"] if data["ram_bytes"] else 0.0, _share(spent, layers)
    if max(ram, cycles) < _LEAST:
        return
    io = "int16" if settings["scheme"] == "a16w8" else "int8"
    yield Advice(
        "float-io",
        f"{kib(size)} of RAM ({ram:.1%}), {spent:,} CPU cycles ({cycles:.1%})",
        "Inputs or outputs are float32. RAM contains both the float and the quantized values, and the CPU converts between "
        f'the two types. Use io="{io}" (--io {io}), because cameras and microphones often deliver integers.',
        max(ram, cycles),
    )


def _transposes(data: Data, layers: Sequence[Layer]) -> Iterator[Advice]:
    moves = [x for x in layers if x.bound == TRANSPOSES]
    share = _share(_cycles(moves), layers)
    if share < _LEAST:
        return
    figure = f"{_cycles(moves):,} cycles ({share:.1%}) in {count_noun(len(moves), 'transpose')}"
    ends = _at_ends(layers)
    settings = data["settings"]
    if ends and settings is not None and settings["io_layout"] != "nhwc":
        yield Advice(
            "transposes.io",
            f"{figure}; inputs and outputs account for {_cycles(ends):,} cycles",
            "The NPU computes in the NHWC layout, but the inputs or outputs of the program have the NCHW layout. Use "
            "io_layout='auto', which selects the faster layout.",
            share,
        )
    else:
        places = _places(sorted(moves, key=lambda x: -(x.cycles or 0)))
        yield Advice(
            "transposes",
            figure,
            f"Permutes and reshapes at {_some(places)} require separate operations. Use permutes that only move the channels; "
            "these permutes often cost no cycles.",
            share,
        )


def _at_ends(layers: Sequence[Layer]) -> list[Layer]:
    ends: list[Layer] = []
    for delegate in dict.fromkeys(x.delegate for x in layers if x.where == NPU):
        operations = [x for x in layers if x.delegate == delegate and x.where == NPU]
        for sequence in (operations, operations[::-1]):
            for layer in sequence:
                if layer.bound != TRANSPOSES or layer in ends:
                    break
                ends.append(layer)
    return ends


def _waiting(data: Data, layers: Sequence[Layer], memory: MemoryReport) -> Iterator[Advice]:
    system = data.get("memory_system")
    for name in MEMORY_KEYS:
        bound = [x for x in layers if x.bound == name and x.cycles is not None and x.npu_cycles is not None]
        lost = sum((x.cycles or 0) - (x.npu_cycles or 0) for x in bound)
        share = _share(lost, layers)
        if share < _LEAST:
            continue
        worst = sorted(bound, key=lambda x: (x.npu_cycles or 0) - (x.cycles or 0))
        places = _some(_places(worst))
        weights = sum(part.flash_bytes or part.ram_bytes for part in memory.components if part.name == "weights")
        if system is not None and name == system["constants"] and name != system["feature_maps"]:
            way = (
                f"The NPU waits for weights ({kib(weights)}) in {name} (memory mode {system['memory_mode']}). If the weights fit "
                'in SRAM, use constants="sram" (--set constants=sram). Otherwise use fewer or 4-bit weights (--scheme a8w4).'
            )
        elif name == "Sram":
            way = (
                "Reading and writing feature maps takes longer than computing the results. Use smaller feature maps, or fewer "
                "operators that only move data."
            )
        else:
            way = f"Feature maps are stored in {name}. Use a memory mode with feature maps in SRAM, or a larger staging memory."
        yield Advice(
            f"waits.{MEMORY_KEYS[name]}",
            f"{lost:,} cycles ({share:.1%}) in {count_noun(len(bound), 'layer')}",
            f"{way} The longest waits are at {places}.",
            share,
        )


def _idle(data: Data, layers: Sequence[Layer]) -> Iterator[Advice]:
    system = data.get("memory_system")
    per_cycle = None if system is None else system["macs_per_cycle"]
    if not per_cycle:
        return
    idle = [
        (x, remedy)
        for x in layers
        if x.where == NPU and x.bound == "compute" and x.macs and x.utilization is not None and x.utilization < 0.25
        if (remedy := _idle_remedy(x))
    ]
    lost = {remedy: 0 for _, remedy in idle}
    for layer, remedy in idle:
        lost[remedy] += round((layer.npu_cycles or 0) - layer.macs / per_cycle)
    share = _share(sum(lost.values()), layers)
    if share < 5 * _LEAST:
        return
    worst = sorted((x for x, _ in idle), key=lambda x: x.macs / per_cycle - (x.npu_cycles or 0))
    remedies = [remedy for remedy in sorted(lost, key=lambda remedy: -lost[remedy]) if lost[remedy] >= _MINOR * sum(lost.values())]
    yield Advice(
        "idle-macs",
        f"{sum(lost.values()):,} cycles ({share:.1%}) with idle multipliers in {count_noun(len(idle), 'layer')}",
        f"The following layers use less than 25% of the NPU's {per_cycle} multipliers: "
        f"{_some(list(dict.fromkeys(map(_operators, worst))))}. Most idle cycles occur at {_some(_places(worst))}. "
        f"{' '.join(remedies)}",
        share,
        is_saving=False,
    )


def _idle_remedy(layer: Layer) -> str:
    maps = [shape for shape in (*layer.ifm_shapes[:1], layer.ofm_shape) if shape]
    if "Depthwise" in layer.operator:
        return "A depthwise convolution multiplies each channel separately. Use fewer channels in depthwise convolutions."
    if not any(kind in layer.operator for kind in _WITH_WEIGHTS):
        return ""
    if any(shape[-1] % _CHANNELS for shape in maps):
        return f"Use a number of channels that is a multiple of {_CHANNELS}."
    if all(prod(shape[:-1]) < _FEW_POSITIONS for shape in maps):
        return (
            "The NPU uses each decoded weight for few positions only. Compute more positions (steps, rows or pixels) in one "
            "operator, or use fewer weights."
        )
    return ""


def _peak(data: Data, layers: Sequence[Layer], memory: MemoryReport) -> Iterator[Advice]:
    regions = {tensor.region for tensor in memory.tensors}
    region = max(regions, key=lambda name: memory.regions.get(name, 0), default=None)
    if region is None or not memory.regions.get(region) or not data["ram_bytes"]:
        return
    owners = memory.peak_owners(region)
    alive = occupied_bytes(owners)
    largest = [f"{_tensor_label(tensor, layers)} ({kib(tensor.size_bytes)})" for tensor in owners]
    share = memory.regions[region] / data["ram_bytes"]
    yield Advice(
        f"peak.{region}",
        f"{kib(memory.regions[region])} ({share:.1%} of the RAM)",
        f"The use of region {region} peaks at layer {memory.peak_layer(region)}, with {kib(alive)} in "
        f"{count_noun(len(owners), 'tensor')}: "
        f"{_some(largest)}. To reduce RAM, use a larger stride, fewer channels, or a smaller input.",
        share / 2,
        is_saving=False,
    )


def _places(layers: Sequence[Layer]) -> list[str]:
    return list(dict.fromkeys(layer.module or _operators(layer) for layer in layers))


def _operators(layer: Layer) -> str:
    return ", ".join(layer.operators) or layer.operator


def _tensor_label(tensor: TensorPlace, layers: Sequence[Layer]) -> str:
    if tensor.delegate is None:
        return tensor.name
    writer = next((layer for layer in layers if layer.delegate == tensor.delegate and layer.name == tensor.name), None)
    if writer is not None:
        label, module = _operators(writer), writer.module
    else:
        reader = next((layer for layer in layers if layer.index == tensor.first), None)
        operator = "" if reader is None else _operators(reader)
        kind = "weights" if not tensor.dtype or tensor.name.startswith("WB_") else "tensor"
        label, module = (f"{kind} for {operator}" if operator else kind), tensor.module or ("" if reader is None else reader.module)
    return f"{label} in {module}" if module else label


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")

"""Combinations of register values that Vela emits, and that are therefore proven on silicon.

``tools.stream_forms`` writes ``forms_*.txt``. ``NEW_FORMS`` contains combinations added by stream passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ethorch.npu import registers
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.ir.image import CONSTANTS
from ethorch.npu.memory import INTERNAL
from ethorch.npu.registers import U85
from ethorch.npu.stream import kernel_stride
from ethorch.npu.verify.instruction import Facts, reject
from ethorch.npu.verify.rejection import Rejection
from ethorch.npu.verify.shram import MOST_SUBKERNEL, is_binary

#: Weights or scales in memory. The feature map can be constant, and the result chained.
_MOVED_WEIGHTS = {
    f"memory: {name}, IFM in {ifm}, {ofm}WEIGHT in {weights}, SCALE in {scales}": "resident-weights, early-transfers, attention"
    for name in ("NPU_OP_CONV WEIGHTS", "NPU_OP_DEPTHWISE")
    for ifm in ("memory", "constants")
    for ofm in ("OFM in memory, ", "")
    for weights, scales in (("memory", "constants"), ("constants", "memory"), ("memory", "memory"))
}
#: Combinations by family that passes of ethorch add, with the pass that adds them: "form": "pass".
NEW_FORMS: dict[str, dict[str, str]] = {
    "u55": {
        **_MOVED_WEIGHTS,
        "weights: written by kernels and copied": "attention",
        "layout: NPU_OP_ELEMENTWISE CLZ, OFM NHWC": "division",
    },
    "u65": {
        **_MOVED_WEIGHTS,
        "weights: written by kernels and copied": "attention",
        "kernel: NPU_OP_CONV WEIGHTS, smallx1, stride 1x1, not padded": "attention",
        "layout: NPU_OP_ELEMENTWISE CLZ, OFM NHWC": "division",
        "layout: NPU_OP_ELEMENTWISE SHL, OFM NHWC": "division",
        "layout: NPU_OP_ELEMENTWISE SHR, IFM NHWC": "division",
        "layout: NPU_OP_ELEMENTWISE ABS, OFM NHWC": "division",
    },
    "u85": {
        **_MOVED_WEIGHTS,
        "transfer: memory to memory, 2D": "dma-copies",
        "transfer: memory to memory, 3D": "dma-copies",
    },
}

_ARITHMETIC = ("OFM_PRECISION.scale_mode", "ACC_FORMAT.format")
_ARITHMETIC_U5X = ("OFM_PRECISION.rounding",)
_ARITHMETIC_U85 = ("OFM_SCALE.rounding", "ACC_FORMAT.input", "ACC_FORMAT.output")
_BROADCAST_U5X = (
    "IFM2_BROADCAST.h",
    "IFM2_BROADCAST.w",
    "IFM2_BROADCAST.c",
    "IFM2_BROADCAST.constant",
    "IFM2_BROADCAST.operand_order",
)
_BROADCAST_U85 = ("IFM_BROADCAST", "IFM2_BROADCAST")
_OUTPUT_U85 = ("OFM_PRECISION.transpose", "OFM_PRECISION.reverse", "OFM_PRECISION.storage")


def check_forms(facts: Facts, index: int, vela_forms: frozenset[str]) -> Iterator[Rejection]:
    family = facts.npu.family
    for form in list_forms(facts):
        if form not in load_forms(family) and form not in NEW_FORMS[family] and form not in vela_forms:
            aspect, _, text = form.partition(": ")
            yield reject(facts, index, "form", aspect, text, f"the combinations in forms_{family}.txt and NEW_FORMS")


@cache
def load_forms(family: str) -> frozenset[str]:
    path = Path(__file__).parent / f"forms_{family}.txt"
    return frozenset(path.read_text("utf-8").splitlines())


def collect_forms(all_facts: Iterable[Facts]) -> frozenset[str]:
    return frozenset(form for facts in all_facts if facts.prepared is not None for form in list_forms(facts))


def list_forms(facts: Facts) -> list[str]:
    if facts.is_dma:
        return [_describe_transfer(facts)]
    forms = [_describe_arithmetic(facts), *_describe_activation(facts), *_describe_layouts(facts), _describe_memory(facts)]
    if facts.name != "NPU_OP_ELEMENTWISE":
        forms.append(_describe_kernel(facts))
    return forms


def _describe_transfer(facts: Facts) -> str:
    values = facts.values
    ends = []
    for end in ("SRC", "DST"):
        name = "tables" if values[f"DMA0_{end}_REGION.internal"] else _region(values[f"DMA0_{end}_REGION.region"])
        ends.append(name + (" indexed" if values.get(f"DMA0_{end}_REGION.indexed") else ""))
    return f"transfer: {ends[0]} to {ends[1]}, {registers.STRIDE_MODE[values['DMA0_SRC_REGION.stride_mode']]}"


def _describe_arithmetic(facts: Facts) -> str:
    keys = [*_ARITHMETIC, *(_ARITHMETIC_U85 if facts.npu.family == U85 else _ARITHMETIC_U5X)]
    if facts.name == "NPU_OP_ELEMENTWISE" and facts.npu.family != U85:
        keys += ["IFM_PRECISION.scale_mode"]
        if facts.values["IFM_PRECISION.scale_mode"]:
            keys += ["IFM_PRECISION.rounding"]
    if facts.npu.family == U85 and facts.name in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE"):
        keys += ["WEIGHT_FORMAT.decoder", "WEIGHT_FORMAT.sparsity"]
    types = [f"{access.name} {access.dtype.name}" for access in _maps(facts)]
    return f"arithmetic: {facts.title}, {', '.join(types)}{_named(facts, keys)}"


def _describe_activation(facts: Facts) -> list[str]:
    return [
        f"activation: {access.dtype.name}, {_function(facts)}{_named(facts, ['ACTIVATION.clip'])}"
        for access in _maps(facts)
        if access.name == "OFM"
    ]


def _describe_layouts(facts: Facts) -> list[str]:
    forms = []
    for access in _maps(facts):
        keys = list(_OUTPUT_U85) if access.name == "OFM" and facts.npu.family == U85 else []
        if access.name == "IFM" and facts.name != "NPU_OP_ELEMENTWISE":
            keys = ["IFM_UPSCALE"]
        forms.append(f"layout: {facts.title}, {access.name} {_layout(access)}{_named(facts, keys)}")
    if is_binary(facts):
        keys = list(_BROADCAST_U85 if facts.npu.family == U85 else _BROADCAST_U5X)
        forms.append(f"broadcast: {facts.title}{_named(facts, keys)}")
    return forms


def _describe_kernel(facts: Facts) -> str:
    values = facts.values
    sizes = "x".join(_size_class(values[f"KERNEL_{axis}"]) for axis in ("HEIGHT", "WIDTH"))
    from_values = _Values(facts)
    stride_y, stride_x = kernel_stride(from_values)  # type: ignore[arg-type]
    padding = "padded" if any(values[f"IFM_PAD_{side}"] for side in ("TOP", "LEFT", "RIGHT", "BOTTOM")) else "not padded"
    keys = ["KERNEL_STRIDE.dilation_y", "KERNEL_STRIDE.dilation_x", "KERNEL_STRIDE.weight_order"]
    return f"kernel: {facts.title}, {sizes}, stride {stride_y}x{stride_x}, {padding}{_named(facts, keys)}"


def _describe_memory(facts: Facts) -> str:
    names = [f"{access.name} in {_region(access.region)}" for access in _maps(facts) if access.in_memory]
    for stream in ("WEIGHT", "SCALE"):
        regions = sorted({_region(run.region) for run in facts.reads if run.register.startswith(stream)})
        names += [f"{stream} in {region}" for region in regions]
    return f"memory: {facts.title}, {', '.join(names)}"


class _Values:
    def __init__(self, facts: Facts):
        self._values = facts.values

    def __getitem__(self, key: str) -> int:
        return self._values[key]


def _maps(facts: Facts) -> list[FeatureMap]:
    assert facts.prepared is not None
    return list({access.name: access for access in facts.prepared.maps}.values())


def _layout(fm: FeatureMap) -> str:
    name = "NHCWB16" if fm.bricks else "NHWC"
    if not fm.in_memory:
        return f"{name} chained"
    tiles = "" if len(fm.tiles) == 1 else f" in {len(fm.tiles)} tiles"
    return f"{name}{tiles}{' reversed' if min(fm.strides[:2]) < 0 else ''}"


def _function(facts: Facts) -> str:
    name = registers.value_names(facts.npu.family)["ACTIVATION.function"][facts.values["ACTIVATION.function"]]
    return "TABLE" if name.startswith("TABLE") else name


def _size_class(size: int) -> str:
    return "1" if size == 1 else "small" if size <= MOST_SUBKERNEL else "large"


def _region(number: int) -> str:
    return {CONSTANTS: "constants", INTERNAL: "tables"}.get(number, "memory")


def _named(facts: Facts, keys: list[str]) -> str:
    names = registers.value_names(facts.npu.family)
    texts = []
    for key in keys:
        value = facts.values[key]
        if value != registers.reset_state(facts.npu.family)[key]:
            texts.append(f", {key} {names[key][value] if key in names else value}")
    return "".join(texts)

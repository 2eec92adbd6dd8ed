"""Kernels that together compute one operator: chains, depth slices, and stripes of a cascade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ethorch.npu import registers
from ethorch.npu.cycles.dependencies import Dependencies
from ethorch.npu.cycles.memories import CONSTANTS
from ethorch.npu.cycles.work import multiplies_maps, reads_accumulators
from ethorch.npu.ir import Op

Key = tuple[object, ...]

CONVOLUTIONS = ("NPU_OP_CONV", "NPU_OP_DEPTHWISE")
_STORAGE_CHAINED = 2
_SCALE_MODE = 8  # bit of OFM_PRECISION: 0 if the scale tensor has the scales
_BASES = frozenset(f"{name}_BASE{tile}" for name in ("IFM", "IFM2", "OFM") for tile in range(4))
_WEIGHTS = ("WEIGHT", "SCALE")
#: Registers that convolutions do not use, so that their values come from earlier kernels.
_UNUSED = ("IFM_BROADCAST", "IFM_SCALE")
#: Registers that do not affect results.
_OF_LAYOUT = ("AB_START", "IFM_IB_END", "IFM2_IB_START")
#: Registers in which depth slices of one convolution differ.
_OF_SLICES = _BASES | {"OFM_DEPTH_M1", "BLOCKDEP"}
_OF_DEPTHWISE_SLICES = _OF_SLICES | {"IFM_DEPTH_M1"}
#: Registers in which stripes of one operator differ.
_OF_STRIPES = _BASES | {
    "BLOCKDEP", "IFM_PAD_TOP", "IFM_PAD_BOTTOM", "OFM_HEIGHT_M1",
    *(f"{name}_HEIGHT{tile}_M1" for name in ("IFM", "IFM2", "OFM") for tile in (0, 1)),
}  # fmt: skip


@dataclass
class Group:
    """The kernels of one operator."""

    units: list[tuple[int, ...]]  # positions of each depth slice or stripe, which is a kernel or a chain
    slices: int = 1  # 1 if the units are stripes

    @property
    def first(self) -> int:
        return self.units[0][0]

    @property
    def last(self) -> int:
        return self.units[-1][-1]

    @property
    def positions(self) -> list[int]:
        return [position for unit in self.units for position in unit]


def find_groups(ops: Sequence[Op], dependencies: Dependencies) -> list[Group]:
    """Group the kernels of each operator, and return the groups in the order of their first kernels."""
    slices = _join_slices(ops, _find_units(ops))
    return _join_stripes(ops, slices, dependencies)


def _find_units(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    units: list[tuple[int, ...]] = []
    chain: list[int] = []
    for position, op in enumerate(ops):
        if op.is_dma:
            continue
        chain.append(position)
        if not _is_chained(op):
            units.append(tuple(chain))
            chain = []
    return [*units, tuple(chain)] if chain else units


def _is_chained(op: Op) -> bool:
    return op.npu.family == registers.U85 and op.values["OFM_PRECISION.storage"] == _STORAGE_CHAINED


def _signature(op: Op, ignored: frozenset[str], prefixes: tuple[str, ...] = ()) -> Key:
    unused: tuple[str, ...] = (*prefixes, *_WEIGHTS, *_OF_LAYOUT)
    if op.name in CONVOLUTIONS:
        unused = (*prefixes, *_UNUSED, *_OF_LAYOUT, *(_WEIGHTS if multiplies_maps(op) else ()))
    if op.name != "NPU_OP_ELEMENTWISE" and not multiplies_maps(op) and not reads_accumulators(op):
        unused += ("IFM2_",)
    if op.registers["OFM_PRECISION"] >> _SCALE_MODE & 1 == 0:
        unused += ("OFM_SCALE",)
    if _is_chained(op):
        unused += ("OFM_BASE", "OFM_STRIDE", "OFM_WIDTH0", "OFM_HEIGHT0", "OFM_HEIGHT1")
    names = _select_names(tuple(op.registers), ignored, unused)
    return op.name, op.parameter, names, tuple(map(op.registers.__getitem__, names))


@lru_cache(maxsize=1 << 10)
def _select_names(names: tuple[str, ...], ignored: frozenset[str], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in ignored and not name.startswith(prefixes))


# --- depth slices -----------------------------------------------------------------------------------------------------


def _join_slices(ops: Sequence[Op], units: Sequence[tuple[int, ...]]) -> list[Group]:
    groups: list[Group] = []
    for unit in units:
        if groups and _follows_in_depth(ops, groups[-1].units[-1], unit):
            groups[-1].units.append(unit)
            groups[-1].slices += 1
        else:
            groups.append(Group([unit]))
    return groups


def _follows_in_depth(ops: Sequence[Op], first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    if len(first) != len(second) or ops[first[0]].name not in CONVOLUTIONS:
        return False
    if any(_slice_signature(ops[a]) != _slice_signature(ops[b]) for a, b in zip(first, second, strict=True)):
        return False
    head, tail = ops[first[0]], ops[second[0]]
    if not _has_own_weights(ops, first[-1], second[0]) or not _have_transferred_weights(head, tail):
        return False
    step = 0 if head.name == "NPU_OP_CONV" else _depth_bytes(head, "IFM")
    if tail.registers["IFM_BASE0"] - head.registers["IFM_BASE0"] != step:
        return False
    before, after = ops[first[-1]], ops[second[-1]]
    is_next = after.registers["OFM_BASE0"] - before.registers["OFM_BASE0"] == _depth_bytes(before, "OFM")
    return is_next and not leaves_rows(before)


def leaves_rows(op: Op) -> bool:
    """Return True if an NHWC OFM has gaps between its rows, as in transposed convolutions."""
    values = op.values
    row = values["OFM_WIDTH"] * values["OFM_STRIDE_X"]
    return values["OFM_PRECISION.format"] == 0 and values["OFM_HEIGHT"] > 1 and values["OFM_STRIDE_Y"] > row


def _has_own_weights(ops: Sequence[Op], before: int, after: int) -> bool:
    first, second = (
        {name: raw for name, raw in ops[position].registers.items() if name.startswith(_WEIGHTS)} for position in (before, after)
    )
    return first != second or any(op.is_dma for op in ops[before + 1 : after])


def _have_transferred_weights(head: Op, tail: Op) -> bool:
    # Vela divides only convolutions whose weights it transfers.
    regions = [op.registers["WEIGHT_REGION"] for op in (head, tail)]
    return regions[0] == regions[1] != CONSTANTS


def _slice_signature(op: Op) -> Key:
    return _signature(op, _OF_SLICES if op.name == "NPU_OP_CONV" else _OF_DEPTHWISE_SLICES, _WEIGHTS)


def _depth_bytes(op: Op, prefix: str) -> int:
    values = op.values
    depth, size = values[f"{prefix}_DEPTH"], 1 << values[f"{prefix}_PRECISION.precision"]
    if values[f"{prefix}_PRECISION.format"] == 0:
        return depth * size
    return depth // 16 * values[f"{prefix}_STRIDE_C"]


# --- stripes ----------------------------------------------------------------------------------------------------------


def _join_stripes(ops: Sequence[Op], groups: Sequence[Group], dependencies: Dependencies) -> list[Group]:
    result: list[Group] = []
    open_groups: dict[Key, Group] = {}
    for group in groups:
        key = tuple(_signature(ops[position], _OF_STRIPES) for position in group.units[0])
        earlier = open_groups.get(key)
        if group.slices == 1 and earlier is not None and _follows_in_rows(ops, dependencies, earlier, group):
            earlier.units += group.units
        else:
            result.append(group)
            open_groups[key] = group
    return [part for group in result for part in _split(group, result)]


def _follows_in_rows(ops: Sequence[Op], dependencies: Dependencies, earlier: Group, group: Group) -> bool:
    last, first = earlier.units[-1], group.units[0]
    before, after = ops[last[-1]], ops[first[-1]]
    is_stripe = earlier.slices == 1 and not any(_transposes(ops[position]) for position in last)
    return is_stripe and _continues(before, after) and not dependencies.reaches(first[0], last[-1])


def _transposes(op: Op) -> bool:
    # A transposed OFM excludes a cascade (CanSubdivide).
    if op.npu.family == registers.U85:
        return op.values["OFM_PRECISION.transpose"] != 0
    return op.registers["OFM_STRIDE_Y"] < op.registers["OFM_STRIDE_X"]


def _continues(before: Op, after: Op) -> bool:
    values = before.values
    rows, padded = values["OFM_HEIGHT"], 0
    if before.name != "NPU_OP_ELEMENTWISE":
        stride = 1 + values["KERNEL_STRIDE.y0"] + 2 * values["KERNEL_STRIDE.y1"]
        rows, padded = rows * stride, values["IFM_PAD_TOP"]
    inputs = (rows - padded) // (2 if values["IFM_UPSCALE"] else 1)
    return _is_next(before, after, "OFM", values["OFM_HEIGHT"]) and _is_next(before, after, "IFM", inputs)


def _is_next(before: Op, after: Op, prefix: str, rows: int) -> bool:
    values, base = before.values, after.registers[f"{prefix}_BASE0"]
    start, first_tile = values[f"{prefix}_BASE0"], values[f"{prefix}_HEIGHT0"]
    if base < start or rows < first_tile:
        return base < start or base == start + rows * values[f"{prefix}_STRIDE_Y"]
    second_tile = values[f"{prefix}_BASE2"]  # 0 if it is not used
    is_in_second = second_tile and base == second_tile + (rows - first_tile) * values[f"{prefix}_STRIDE_Y"]
    return bool(is_in_second) or base == start + rows * values[f"{prefix}_STRIDE_Y"]


def _split(group: Group, groups: Sequence[Group]) -> list[Group]:
    # A group is part of a cascade only if it is interleaved with another. All kernels inside a cascade are stripes.
    if len(group.units) == 1 or group.slices > 1:
        return [group]
    others = [other for other in groups if other is not group]
    if any(len(other.units) == 1 and group.first < other.first < group.last for other in others):
        return [Group([unit]) for unit in group.units]
    if any(len(other.units) > 1 and _interleave(group, other) for other in others):
        return [group]
    return [Group([unit]) for unit in group.units]


def _interleave(group: Group, neighbor: Group) -> bool:
    return group.first < neighbor.first < group.last < neighbor.last or neighbor.first < group.first < neighbor.last < group.last

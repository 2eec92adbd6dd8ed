"""Block sizes and SHRAM layouts of U55 and U65.

Sources: ``TryBlockConfig`` and ``FindBlockConfig`` of regor, Vela's architecture_allocator.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.feature_map import BRICK
from ethorch.npu.registers import Npu
from ethorch.npu.verify.instruction import Facts, reject
from ethorch.npu.verify.rejection import Rejection
from ethorch.npu.window import Window

BANK_BYTES = 1024
OUTPUT_BANKS = 2  # reserved at the start
TABLE_BANKS = 2  # at the end, if tables are in use or always (``Shram.reserves_tables``)
MOST_BLOCK = (32, 64, 128)  # height, width, depth
MOST_SUBKERNEL = 8  # rows or columns of a kernel that is processed at a time
IFM_DEPTH_UNIT = 8
I40 = 1  # ACC_FORMAT.format
UPSCALE_NEAREST = 1


class Shram(NamedTuple):
    """The SHRAM of one NPU."""

    banks: int  # of 1 KiB
    microblock: tuple[int, int, int]  # height, width, depth
    ifm_granule: dict[int, int]  # banks to which IFM buffers are rounded, by element bytes
    acc_granule: dict[int, int]  # banks to which accumulators are rounded, by ACC_FORMAT.format
    reserves_tables: bool  # buffers never use the banks of tables


SHRAM = {
    "ethos-u55-32": Shram(16, (1, 1, 4), {1: 2, 2: 2, 4: 4}, {0: 4, 1: 4}, False),
    "ethos-u55-64": Shram(16, (1, 1, 8), {1: 2, 2: 2, 4: 4}, {0: 4, 1: 8}, False),
    "ethos-u55-128": Shram(24, (1, 2, 8), {1: 4, 2: 4, 4: 8}, {0: 8, 1: 12}, True),
    **dict.fromkeys(
        ("ethos-u55-256", "ethos-u65-256", "ethos-u65-512"),
        Shram(48, (2, 2, 8), {1: 8, 2: 8, 4: 16}, {0: 16, 1: 20}, True),
    ),
}


@dataclass(frozen=True)
class Layout:
    """The values of the layout registers, in banks."""

    ib_end: int
    ib2_start: int
    ab_start: int
    ifm_banks: int  # two buffers of one operand
    needed: int  # end of the last IFM buffer


def check_block(facts: Facts, index: int) -> Iterator[Rejection]:
    values, block = facts.values, block_size(facts)
    size_rejections = list(check_size(facts, index, block_units(facts), largest_block(facts)))
    if size_rejections:
        yield from size_rejections
        return
    fitting = find_layouts(facts)
    if not fitting:
        layout = _list_layouts(facts)[-1]
        needed, available = layout.needed, layout.ib_end
        size_text = "x".join(map(str, block))
        text = f"blocks with IFM buffers that end at bank {available} or before; those of this one end at {needed}"
        yield reject(facts, index, "shram", "OFM_BLK_HEIGHT, _WIDTH, _DEPTH", size_text, text)
        return
    registers = [("AB_START", "ab_start"), ("IFM_IB_END", "ib_end")]
    if is_binary(facts):
        registers.append(("IFM2_IB_START", "ib2_start"))
    for name, attribute in registers:
        allowed = {getattr(layout, attribute) for layout in fitting}
        if values[name] not in allowed:
            yield reject(facts, index, "shram-layout", name, values[name], " or ".join(map(str, sorted(allowed))))
        fitting = [layout for layout in fitting if getattr(layout, attribute) == values[name]] or fitting


def check_size(facts: Facts, index: int, units: tuple[int, int, int], most: tuple[int, int, int]) -> Iterator[Rejection]:
    """Check that a block consists of whole units, does not exceed the maximum, and splits the OFM at brick boundaries."""
    block = block_size(facts)
    for axis, size, unit, largest in zip(("HEIGHT", "WIDTH", "DEPTH"), block, units, most, strict=True):
        if size % unit or size > largest:
            yield reject(facts, index, "block", f"OFM_BLK_{axis}", size, f"multiples of {unit} up to {largest}")
    if not splits_at_bricks(block[2], facts.values["OFM_DEPTH"]):
        yield reject(facts, index, "block", "OFM_BLK_DEPTH", block[2], f"multiples of {BRICK}, or at least the OFM depth")


def splits_at_bricks(depth: int, ofm_depth: int) -> bool:
    """Return True if blocks of this depth start at brick boundaries (see npu_find_block_configs in Vela's api.py)."""
    return depth >= ofm_depth or depth % BRICK == 0


def find_layouts(facts: Facts) -> list[Layout]:
    """Return the possible layouts that fit into SHRAM."""
    return [layout for layout in _list_layouts(facts) if layout.needed <= layout.ib_end]


def _list_layouts(facts: Facts) -> list[Layout]:
    shram = SHRAM[facts.npu.name]
    heights, sizes = _accumulator_heights(facts, shram), _element_bytes(facts)
    return [compute_layout(facts, shram, height, element_bytes) for height in heights for element_bytes in sizes]


def block_units(facts: Facts) -> tuple[int, int, int]:
    return SHRAM[facts.npu.name].microblock


def largest_block(facts: Facts) -> tuple[int, int, int]:
    return MOST_BLOCK


def block_size(facts: Facts) -> tuple[int, int, int]:
    values = facts.values
    return values["OFM_BLK_HEIGHT"], values["OFM_BLK_WIDTH"], values["OFM_BLK_DEPTH"]


def is_binary(facts: Facts) -> bool:
    return facts.name == "NPU_OP_ELEMENTWISE" and facts.mode not in ("ABS", "CLZ", "LRELU", "NOT")


def _accumulator_heights(facts: Facts, shram: Shram) -> list[int]:
    # FitBlockForOFM; the heights depend on the whole OFM.
    height = facts.values["OFM_BLK_HEIGHT"]
    if facts.values["OFM_HEIGHT"] == 1 and shram.microblock[0] == 2 and facts.values["KERNEL_HEIGHT"] == 1:
        return [1, height]
    return [height]


def _element_bytes(facts: Facts) -> list[int]:
    # Copies may split elements (InsertTransposeCommand).
    size = 1 << facts.values["IFM_PRECISION.precision"]
    larger = size * facts.values["IFM_DEPTH"]
    is_copy = facts.mode == "AVERAGE" and facts.values["KERNEL_HEIGHT"] == facts.values["KERNEL_WIDTH"] == 1
    return [size, larger] if is_copy and size < larger <= 4 and larger in (2, 4) else [size]


def compute_layout(facts: Facts, shram: Shram, accumulator_height: int, element_bytes: int) -> Layout:
    values = facts.values
    height, width, depth = ifm_block(facts, shram)
    row = -(-depth * element_bytes // 8) * 8
    granule = shram.ifm_granule[element_bytes]
    ifm_banks = _round_up(2 * ceil_div(height * width * row, BANK_BYTES), granule)
    uses_table = facts.table is not None
    tables = TABLE_BANKS if uses_table or shram.reserves_tables else 0
    tables_start = shram.banks - tables
    end = OUTPUT_BANKS + ifm_banks
    if facts.name == "NPU_OP_ELEMENTWISE":
        needed = end + (ifm_banks if is_binary(facts) and _reads_map(facts) else 0)
        return Layout(tables_start, end, tables_start, ifm_banks, needed)
    form = values["ACC_FORMAT.format"]
    bits = 40 if form == I40 else 32
    _, block_width, block_depth = block_size(facts)
    accumulators = accumulator_height * block_width * _round_up(block_depth, 8) * bits // 8
    start = tables_start - _round_up(2 * ceil_div(accumulators, BANK_BYTES), shram.acc_granule[form])
    return Layout(end, end, start, ifm_banks, end) if end <= start else Layout(start, end, start, ifm_banks, end)


def _reads_map(facts: Facts) -> bool:
    if facts.values["IFM2_BROADCAST.constant"]:
        return False
    assert facts.prepared is not None
    maps = [access for access in facts.prepared.maps if access.name == "IFM2"]
    return any(access.elements > 1 or access.dtype.itemsize > 2 for access in maps)


def ifm_block(facts: Facts, shram: Shram) -> tuple[int, int, int]:
    """Return the height, width and depth of a kernel's IFM blocks."""
    height, width, depth = block_size(facts)
    window = getattr(facts.prepared.form, "window", None) if facts.prepared else None
    if isinstance(window, Window):
        nearest = window.upscale == UPSCALE_NEAREST
        factor = 1 if window.upscale == 0 else 2
        height, width = (
            ceil_div((size - 1) * stride + min(extent, MOST_SUBKERNEL) + nearest, factor)
            for size, stride, extent in zip((height, width), window.stride, window.extent, strict=True)
        )
    height, width = _round_up(height, shram.microblock[0]), _round_up(width, shram.microblock[1])
    if facts.name == "NPU_OP_CONV" or facts.mode == "REDUCE_SUM":
        depth = ifm_block_depth(facts)
    return height, width, depth


def ifm_block_depth(facts: Facts) -> int:
    values = facts.values
    if values["IFM_PRECISION.precision"] == 1:
        return _round_up(min(values["IFM_DEPTH"], 16), 4)
    most = 16 if facts.name == "NPU_OP_CONV" and values["KERNEL_STRIDE.weight_order"] else 32
    return _round_up(min(values["IFM_DEPTH"], most), IFM_DEPTH_UNIT)


def _round_up(value: int, unit: int) -> int:
    return ceil_div(value, unit) * unit


def tables_share_banks(npu: Npu) -> bool:
    """Return True if kernels without lookup tables overwrite the SHRAM banks of lookup tables."""
    return npu.name in SHRAM and not SHRAM[npu.name].reserves_tables

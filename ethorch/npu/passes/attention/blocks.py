"""Block sizes of 8-bit kernels on U55 and U65, and the blocks' layout in SHRAM.

Source: ArchEthosU55::TryBlockConfig.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ethorch.npu.arithmetic import ceil_div, round_up
from ethorch.npu.cycles.hardware import U55_MICROBLOCK, core_macs
from ethorch.npu.registers import Npu

BANK_BYTES = 1024
MOST_DEPTH = 128
_MOST_WIDTH = 64
_OUTPUT_BANKS = 2
_TABLE_BANKS = 2
_ACCUMULATOR_BYTES = 4
_DEPTH_UNIT = 8
#: Banks to which IFM and accumulator buffers are rounded, by MACs of a core.
_GRANULES = {32: (2, 4), 64: (2, 4), 128: (4, 8), 256: (8, 16)}
_SHARED_TABLES = 16  # banks of an SHRAM that reserves none for tables

Size = tuple[int, int, int]  # height, width, depth


@dataclass(frozen=True)
class Block:
    size: Size
    ifm_end: int  # bank after the IFM buffers
    accumulators: int  # first bank

    @property
    def registers(self) -> dict[str, int]:
        height, width, depth = self.size
        return {
            "OFM_BLK_HEIGHT_M1": height - 1,
            "OFM_BLK_WIDTH_M1": width - 1,
            "OFM_BLK_DEPTH_M1": depth - 1,
            "IFM_IB_END": self.ifm_end,
            "AB_START": self.accumulators,
        }


def shares_tables(npu: Npu) -> bool:
    """Return True if kernels without a lookup table use the SHRAM banks of lookup tables for other data."""
    return npu.internal_bytes // BANK_BYTES == _SHARED_TABLES


def fit_block(npu: Npu, size: Size, ifm: Size, has_table: bool, is_flat: bool = False) -> Block | None:
    """Return the OFM block of ``size``, or None if its buffers do not fit in SHRAM.

    Args:
        is_flat: Whether SHRAM needs space for only one row of accumulators.
    """
    banks = npu.internal_bytes // BANK_BYTES
    ifm_granule, granule = _GRANULES[core_macs(npu)]
    ifm_bytes = ifm[0] * ifm[1] * round_up(ifm[2], _DEPTH_UNIT)
    end = _OUTPUT_BANKS + round_up(2 * ceil_div(ifm_bytes, BANK_BYTES), ifm_granule)
    height = 1 if is_flat else size[0]
    sums = height * size[1] * round_up(size[2], _DEPTH_UNIT) * _ACCUMULATOR_BYTES
    tables = 0 if shares_tables(npu) and not has_table else _TABLE_BANKS
    start = banks - tables - round_up(2 * ceil_div(sums, BANK_BYTES), granule)
    return Block(size, end, start) if end <= start else None


def choose_copy_block(npu: Npu, size: Size, has_table: bool) -> Block:
    unit = U55_MICROBLOCK[core_macs(npu)]
    height, width, depth = (round_up(min(n, most), step) for n, most, step in zip(size, (32, 64, 32), unit, strict=True))
    while True:
        block = fit_block(npu, (height, width, depth), (height, width, depth), has_table)
        if block is not None:
            return block
        if height > unit[0]:
            height = round_up(height // 2, unit[0])
        else:
            width = round_up(width // 2, unit[1])


def list_blocks(npu: Npu, columns: int, depths: tuple[int, ...], kernel_height: int, ifm_depth: int) -> Iterator[Block]:
    """Iterate over the OFM blocks that a convolution with one output row can use."""
    unit = U55_MICROBLOCK[core_macs(npu)]
    ifm_height = round_up(unit[0] - 1 + kernel_height, unit[0])
    for depth in depths:
        for width in range(unit[1], min(round_up(columns, unit[1]), _MOST_WIDTH) + 1, unit[1]):
            ifm = (ifm_height, width, ifm_depth)
            block = fit_block(npu, (unit[0], width, depth), ifm, False, is_flat=unit[0] > 1 and kernel_height == 1)
            if block is not None:
                yield block

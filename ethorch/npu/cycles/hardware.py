"""Throughput constants of each NPU, from Vela 5's regor."""

from __future__ import annotations

from dataclasses import dataclass

from ethorch.npu import registers
from ethorch.npu.registers import Npu

Size = tuple[int, int, int]  # height, width, depth

#: Largest kernel that the array processes at once: s_SubkernelLimits in ethos_u55_performance.cpp and ethos_u85_performance.cpp.
SUBKERNEL = 8


@dataclass(frozen=True)
class Throughput:
    """The output unit's cycles per element, by type of operation and by activation."""

    output: tuple[float, ...]
    activation: tuple[float, ...]


#: s_EthosU55PerfInfo in ethos_u55.cpp and s_EthosU65PerfInfo in ethos_u65.cpp, by MACs.
U55_THROUGHPUT = {
    32: Throughput((2.0, 3.0, 3.0, 3.0, 4.0, 6.0, 1.0, 2.0), (1.0, 1.0, 0.0)),
    64: Throughput((1.0, 1.5, 1.5, 1.5, 2.0, 3.0, 0.5, 1.0), (1.0, 1.0, 0.0)),
    128: Throughput((0.75, 1.25, 0.75, 0.75, 1.0, 1.5, 0.25, 0.5), (1.0, 0.5, 0.0)),
    256: Throughput((0.625, 1.125, 0.5, 0.375, 0.5, 0.75, 0.125, 0.25), (1.0, 0.25, 0.0)),
    512: Throughput((0.3125, 0.5625, 0.25, 0.1875, 0.25, 0.375, 0.0625, 0.125), (0.5, 0.125, 0.0)),
}

#: s_EthosU85PerfInfo in ethos_u85.cpp, by MACs.
U85_THROUGHPUT = {
    128: Throughput((0.5, 0.5, 0.5, 1.0, 1.0, 1.0), (0.5, 1.0)),
    256: Throughput((0.25, 0.25, 0.25, 0.5, 0.5, 0.5), (0.25, 0.5)),
    512: Throughput((0.125, 0.125, 0.25, 0.5, 0.25, 0.25), (0.125, 0.25)),
    1024: Throughput((0.0625, 0.125, 0.25, 0.5, 0.125, 0.25), (0.0625, 0.125)),
    2048: Throughput((0.03125, 0.0625, 0.125, 0.25, 0.0625, 0.125), (0.03125, 0.0625)),
}

#: OFM microblocks: s_EthosU55Configs in ethos_u55.cpp, by MACs of a core.
U55_MICROBLOCK: dict[int, Size] = {32: (1, 1, 4), 64: (1, 1, 8), 128: (1, 2, 8), 256: (2, 2, 8)}

#: Height and width of ACC_FORMAT.microblock of U85 (npu-reference 2.5).
U85_MICROBLOCK_AREA = {0: (1, 1), 1: (1, 2), 2: (1, 4), 3: (2, 2), 4: (2, 4), 5: (4, 4)}

#: Outstanding 16-byte words per read channel: channelRBs of s_EthosU85Configs in ethos_u85.cpp, by MACs.
U85_READ_WORDS = {
    128: (64, 64, 128, 128, 104, 16),
    256: (104, 104, 128, 128, 128, 16),
    512: (128, 128, 256, 256, 128, 16),
    1024: (256, 256, 416, 208, 256, 16),
    2048: (256, 256, 512, 256, 256, 16),
}


def ifm_unit(npu: Npu, microblock: Size, ifm_depth: int, bits: int) -> Size:
    """Return the unit in which U85 allocates IFM blocks (SetupOfmUBlockToIfmAuTable and CalcIfmAUSize in ethos_u85.cpp)."""
    level = 2 if ifm_depth * bits > 256 else 1 if ifm_depth * bits > 128 else 0
    area = microblock[:2]
    if npu.macs == 128:
        unit = ((1, 2, 1), (1, 1, 2), (1, 1, 2))[level]
    elif npu.macs in (256, 512):
        unit = ((1, 4, 1) if area == (1, 4) else (2, 2, 1), (1, 2, 2), (1, 1, 4))[level]
    elif npu.macs == 1024:
        unit = ((2, 4, 1), (1, 4, 2) if area == (1, 4) else (2, 2, 2), (1, 2, 4))[level]
    else:
        unit = ((4, 4, 1), (2, 4, 2), (1, 4, 4) if area == (1, 4) else (2, 2, 4))[level]
    return unit[0], unit[1], unit[2] * 128 // bits


def core_macs(npu: Npu) -> int:
    return npu.macs if npu.family == registers.U55 else npu.macs // npu.cores

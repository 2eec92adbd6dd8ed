"""Build operations that copy, convolve and transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ethorch.npu.arithmetic import round_up
from ethorch.npu.arrays import Bytes
from ethorch.npu.ir import Op
from ethorch.npu.ir.image import CONSTANTS
from ethorch.npu.ir.stream import used_registers
from ethorch.npu.passes.attention.blocks import Block, Size, choose_copy_block
from ethorch.npu.registers import Npu

_AVERAGE = 1
_SIGNED_BYTES = 1  # PRECISION: int8, NHWC
_COPY_PRECISION = 1 | 1 << 8  # with the scale of OFM_SCALE
#: Scale of Vela's copies: (x * (2**31 + 1) + 2**30) >> 31 is x for 8 bits.
_COPY_SCALE = 31 << 32 | (1 << 31) + 1
_FIRST_TABLE = 16  # ACTIVATION
_INTERNAL = 1 << 8  # DMA0_DST_REGION: SHRAM
_LIMITS = {"ACTIVATION_MIN": -128 & 0xFFFF, "ACTIVATION_MAX": 127}
LINE = 16  # bytes; alignment of constants and transfers


@dataclass(frozen=True)
class Place:
    """The location of int8 values [H, W, C] in memory."""

    region: int
    base: int
    size: Size
    strides: tuple[int, int]  # bytes between rows, and between columns

    def registers(self, prefix: str) -> dict[str, int]:
        height, width, depth = self.size
        return {
            f"{prefix}_REGION": self.region,
            f"{prefix}_BASE0": self.base,
            f"{prefix}_WIDTH0_M1": width - 1,
            f"{prefix}_HEIGHT0_M1": height - 1,
            f"{prefix}_HEIGHT1_M1": height - 1,
            f"{prefix}_DEPTH_M1": depth - 1,
            f"{prefix}_STRIDE_Y": self.strides[0],
            f"{prefix}_STRIDE_X": self.strides[1],
            f"{prefix}_STRIDE_C": 1,
        }


@dataclass
class Constants:
    """The constants of a stream, to which blocks of bytes can be appended. Equal blocks are stored once."""

    data: Bytes
    _added: dict[bytes, int] = field(default_factory=dict)

    def add(self, block: bytes) -> int:
        if block not in self._added:
            start = round_up(len(self.data), LINE)
            self._added[block] = start
            padding = bytes(start - len(self.data))
            end = bytes(-len(block) % LINE)
            self.data = np.concatenate([self.data, np.frombuffer(padding + block + end, np.uint8)])
        return self._added[block]


@dataclass
class Emitter:
    """A builder of operations in execution order. Their keys are negative and decrease."""

    npu: Npu
    next_key: int
    ops: list[Op] = field(default_factory=list)

    def emit(self, name: str, parameter: int, registers: dict[str, int]) -> None:
        raw = dict.fromkeys(used_registers(self.npu.family, name, parameter, 0), 0)
        unknown = registers.keys() - raw.keys()
        assert not unknown, unknown
        self.ops.append(Op(self.npu, name, parameter, {**raw, **registers}, self.next_key))
        self.next_key -= 1

    def transfer(self, source: tuple[int, int], target: tuple[int, int], size_bytes: int) -> None:
        """Emit a transfer from one (region, address) pair to another."""
        registers = {"DMA0_SRC_REGION": source[0], "DMA0_DST_REGION": target[0]}
        self.emit("NPU_OP_DMA_START", 0, {**registers, "DMA0_SRC": source[1], "DMA0_DST": target[1], "DMA0_LEN": size_bytes})

    def load_table(self, address: int, slot: int, size_bytes: int) -> None:
        registers = {"DMA0_SRC_REGION": CONSTANTS, "DMA0_DST_REGION": _INTERNAL}
        target = self.npu.lut_base + size_bytes * slot
        self.emit("NPU_OP_DMA_START", 0, {**registers, "DMA0_SRC": address, "DMA0_DST": target, "DMA0_LEN": size_bytes})

    def copy(self, source: Place, target: Place, parallel: int, table: int | None = None, is_zero: bool = False) -> None:
        """Emit a kernel that copies int8 values, optionally through a lookup table, or fills the target with zeros."""
        height, width, _ = target.size
        registers = {
            **source.registers("IFM"),
            **target.registers("OFM"),
            "IFM_PRECISION": _SIGNED_BYTES,
            "OFM_PRECISION": _COPY_PRECISION,
            "OFM_HEIGHT_M1": height - 1,
            "OFM_WIDTH_M1": width - 1,
            "OFM_SCALE": _COPY_SCALE,
            **_LIMITS,
            **choose_copy_block(self.npu, target.size, table is not None).registers,
            **_parallel(self.npu, parallel),
        }
        if table is not None:
            registers["ACTIVATION"] = _FIRST_TABLE + table
        if is_zero:
            registers |= {"ACTIVATION_MIN": 0, "ACTIVATION_MAX": 0}
        self.emit("NPU_OP_POOL", _AVERAGE, registers)

    def convolve(
        self,
        ifm: tuple[Place, int],
        ofm: Place,
        output: Op,
        block: Block,
        streams: Sequence[tuple[str, int, int, int]],
    ) -> None:
        """Emit a convolution whose kernel is one column wide and as high as the IFM.

        Args:
            ifm: Place and zero point of the IFM.
            output: Operation from which the OFM's precision, zero point and activation are copied.
            streams: Register prefix (e.g. WEIGHT1), region, address and size of each weight or scale stream.
        """
        place, zero_point = ifm
        copied = ("OFM_ZERO_POINT", "ACTIVATION", "ACTIVATION_MIN", "ACTIVATION_MAX", "ACC_FORMAT")
        registers = {
            **place.registers("IFM"),
            **ofm.registers("OFM"),
            "IFM_PRECISION": _SIGNED_BYTES,
            "IFM_ZERO_POINT": zero_point & 0xFFFF,
            "KERNEL_HEIGHT_M1": place.size[0] - 1,
            "OFM_PRECISION": output.registers["OFM_PRECISION"] & ~(1 << 8),
            "OFM_HEIGHT_M1": ofm.size[0] - 1,
            "OFM_WIDTH_M1": ofm.size[1] - 1,
            **{name: output.registers[name] for name in copied},
            **block.registers,
            **_parallel(self.npu, output.registers.get("PARALLEL_MODE", 0)),
        }
        for name, region, address, size_bytes in streams:
            registers |= {f"{name.rstrip('1')}_REGION": region, f"{name}_BASE": address, f"{name}_LENGTH": size_bytes}
        self.emit("NPU_OP_CONV", 0, registers)


def _parallel(npu: Npu, mode: int) -> dict[str, int]:
    return {"PARALLEL_MODE": mode} if "PARALLEL_MODE" in used_registers(npu.family, "NPU_OP_POOL", 0, 0) else {}

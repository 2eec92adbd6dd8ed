"""Tables of commands, registers and NPU configurations."""

# Bit positions refer to a whole command: bits 0..31 are the first word, bits 32..63 the second (CMD1 only). A ``Register`` handles
# minus-one encodings, sign extension and split addresses. ``decode`` returns integers keyed by register name (``IFM_DEPTH``), or
# by ``REGISTER.field`` if a register has several fields (``IFM_PRECISION.signed``).
#
# Sources: Arm's register headers (npu-reference 1.3, 2), and the CONFIG words in payloads of all targets.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from ethorch.support.errors import MachineFault

U55, U65, U85 = "u55", "u65", "u85"
U5X = (U55, U65)
ALL = (U55, U65, U85)
LANES = 4  # channels of a group in a weight decoder of U85 (npu-reference 4.3)

Enum = Mapping[int, str]


@dataclass(frozen=True)
class Npu:
    """An NPU configuration, identified by the CONFIG word of the payload header (npu-reference 1.3).

    Attributes:
        cores: Number of weight streams per operation. Each core, or each weight decoder on U85, reads one.
        internal_bytes: Size of the internal memory that DMA transfers can write: one core's SHRAM, or the LUT RAM on U85.
        ofm_units: OFM microblock depth, keyed by ACC_FORMAT.microblock (npu-reference 8.2). The only key of U55 and U65 is 0.
    """

    name: str
    family: str
    config: int
    macs: int
    cores: int
    internal_bytes: int
    ofm_units: Mapping[int, int]

    @property
    def lut_base(self) -> int:
        return self.internal_bytes - 2048


def _ofm_units(macs: int, cores: int) -> Mapping[int, int]:
    areas = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 16}  # height*width by ACC_FORMAT.microblock (npu-reference 2.5)
    depths = {microblock: macs // 8 // area for microblock, area in areas.items()}
    return {microblock: depth for microblock, depth in depths.items() if depth and depth % (LANES * cores) == 0}


def _u85(config: int, macs: int, cores: int) -> Npu:
    return Npu(f"ethos-u85-{macs}", U85, config, macs, cores, 2048, _ofm_units(macs, cores))


NPUS: Mapping[int, Npu] = {
    npu.config: npu
    for npu in (
        Npu("ethos-u55-32", U55, 0x00001005, 32, 1, 16 << 10, {0: 4}),
        Npu("ethos-u55-64", U55, 0x00001006, 64, 1, 16 << 10, {0: 8}),
        Npu("ethos-u55-128", U55, 0x00001807, 128, 1, 24 << 10, {0: 8}),
        Npu("ethos-u55-256", U55, 0x00003008, 256, 1, 48 << 10, {0: 8}),
        Npu("ethos-u65-256", U65, 0x10003008, 256, 1, 48 << 10, {0: 8}),
        Npu("ethos-u65-512", U65, 0x10006009, 512, 2, 48 << 10, {0: 8}),
        _u85(0x20000117, 128, 1),
        _u85(0x20000118, 256, 1),
        _u85(0x20001119, 512, 2),
        _u85(0x2000251A, 1024, 4),
        _u85(0x2000261B, 2048, 4),
    )
}


def find_npu(name: str) -> Npu:
    """Return the NPU with a name, e.g. ``ethos-u55-128``."""
    return next(npu for npu in NPUS.values() if npu.name == name)


# ---------------------------------------------------------------------------------------------------------------------
# Fields


@dataclass(frozen=True)
class Field:
    """The bits low..high of a command. ``values`` lists the legal values if not all are legal."""

    name: str
    low: int
    high: int
    bias: int = 0
    signed: bool = False
    values: Enum | None = None

    @property
    def mask(self) -> int:
        return ((1 << (self.high - self.low + 1)) - 1) << self.low

    def decode(self, word: int) -> int:
        width = self.high - self.low + 1
        value = (word >> self.low) & ((1 << width) - 1)
        if self.signed and value >> (width - 1):
            value -= 1 << width
        return value + self.bias


@dataclass(frozen=True)
class Address(Field):
    """A 40-bit integer, with bits 31..0 in the second word, and bits 39..32 in bits 23..16 of the first word."""

    @property
    def mask(self) -> int:
        return 0xFFFFFFFF_00FF0000

    def decode(self, word: int) -> int:
        value = (word >> 32) | ((word >> 16) & 0xFF) << 32
        if self.signed and value >> 39:
            value -= 1 << 40
        return value + self.bias


def bit(name: str, position: int, bias: int = 0, values: Enum | None = None) -> Field:
    return Field(name, position, position, bias, values=values)


PARAM = (Field("", 16, 31),)
PARAM_SIGNED = (Field("", 16, 31, signed=True),)
PARAM_M1 = (Field("", 16, 31, bias=1),)
ADDRESS = (Address("", 32, 63),)
STRIDE = (Address("", 32, 63, signed=True),)

PRECISION: Enum = {0: "8", 1: "16", 2: "32"}
PRECISION_U85: Enum = {**PRECISION, 3: "64"}
FORMAT: Enum = {0: "NHWC", 1: "NHCWB16"}
ROUNDING: Enum = {0: "DBL", 1: "TRUNCATE", 2: "NATURAL"}
ROUNDING_U85: Enum = {
    0: "DOUBLE_SYMMETRIC",
    1: "NATURAL",
    2: "DOUBLE_ASYMMETRIC",
    3: "SYMMETRIC",
    4: "TRUNCATE_TO_ZERO",
    5: "TRUNCATE_TO_LOWER",
}
STORAGE: Enum = {0: "TILE2X2", 1: "TILE3X1", 2: "CHAINED", 3: "NONE"}
TRANSPOSE: Enum = {0: "HWC", 1: "WHC", 2: "HCW", 3: "WCH", 6: "CHW", 7: "CWH"}
BROADCAST_U85: Enum = {0: "NONE", 1: "H", 2: "W", 3: "HW", 4: "C", 5: "CH", 6: "CW", 7: "CWH", 8: "SCALAR"}
ACTIVATION: Enum = {0: "NONE", 3: "TANH", 4: "SIGMOID", **{16 + n: f"TABLE_{n}" for n in range(8)}}
ACTIVATION_U85: Enum = {
    0: "NONE",
    1: "LUT_U8_U8",
    4: "LUT_S8_S8",
    5: "LUT_S8_S16",
    7: "LUT_S8_S32",
    8: "LUT_S16_S16",
    9: "LUT_S16_S32",
    10: "LUT_TANH",
    11: "LUT_SIGMOID",
}
STRIDE_MODE: Enum = {0: "1D", 1: "2D", 2: "3D"}


# ---------------------------------------------------------------------------------------------------------------------
# Registers


@dataclass(frozen=True)
class Register:
    """A register or an operation of one or more NPU families. ``key`` is its hardware name without _M1."""

    code: int
    name: str
    fields: tuple[Field, ...]
    families: tuple[str, ...] = ALL
    cmd1: bool = False

    @property
    def key(self) -> str:
        return self.name.removesuffix("_M1")

    @cached_property
    def named_fields(self) -> list[tuple[str, Field]]:
        return [(f"{self.key}.{f.name}" if f.name else self.key, f) for f in self.fields]

    def decode(self, word: int) -> dict[str, int]:
        """Return the values of the fields, by key. Raise MachineFault if unused bits are set or a value is illegal."""
        used = 0xC3FF  # opcode and control
        values = {}
        for key, f in self.named_fields:
            used |= f.mask
            values[key] = value = f.decode(word)
            if f.values is not None and value not in f.values:
                legal = ", ".join(f"{k} {v}" for k, v in f.values.items())
                raise MachineFault(f"{key} = {value} is not a legal value ({legal})")
        if word & ~used:
            raise MachineFault(f"{self.name}: bits {word & ~used:#x} are set but do not belong to a field")
        return values


def _tiles(prefix: str, code0: int, code1: int) -> list[Register]:
    return [
        Register(code0 + 0xA, f"{prefix}_WIDTH0_M1", PARAM_M1),
        Register(code0 + 0xB, f"{prefix}_HEIGHT0_M1", PARAM_M1),
        Register(code0 + 0xC, f"{prefix}_HEIGHT1_M1", PARAM_M1),
        Register(code0 + 0xF, f"{prefix}_REGION", (Field("", 16, 18),)),
        *(Register(code1 + i, f"{prefix}_BASE{i}", ADDRESS, cmd1=True) for i in range(4)),
        *(Register(code1 + 4 + i, f"{prefix}_STRIDE_{axis}", STRIDE, cmd1=True) for i, axis in enumerate("XYC")),
    ]


def _operand_scale(name: str, code: int) -> Register:
    return Register(
        code,
        name,
        (
            Field("scale", 32, 62),
            Field("shift", 16, 21),
            Field("dbl_rnd", 22, 26),
            bit("rounding", 29, values={0: "DOUBLE_SYMMETRIC", 1: "NATURAL"}),
        ),
        (U85,),
        cmd1=True,
    )


def _resize_steps(name: str, code: int) -> Register:
    fields = (
        Field("one_step_int", 16, 19),
        Field("blk_step_int", 20, 30),
        Field("one_step_mod", 32, 42),
        Field("blk_step_mod", 48, 58),
    )
    return Register(code, name, fields, (U85,), cmd1=True)


_PRECISION_5X = (
    bit("signed", 16),
    Field("precision", 18, 19, values=PRECISION),
    Field("format", 22, 23, values=FORMAT),
)
_PRECISION_85 = (
    bit("signed", 16),
    Field("precision", 18, 19, values=PRECISION_U85),
    Field("format", 22, 23, values=FORMAT),
    Field("storage", 30, 31, values=STORAGE),
)
_DMA_REGION = (Field("region", 16, 18), bit("internal", 24), Field("stride_mode", 25, 26, values=STRIDE_MODE))

REGISTERS: tuple[Register, ...] = (
    # CMD0 (npu-reference 2.3)
    Register(0x100, "IFM_PAD_TOP", (Field("", 16, 22),)),
    Register(0x101, "IFM_PAD_LEFT", (Field("", 16, 22),)),
    Register(0x102, "IFM_PAD_RIGHT", (Field("", 16, 23),)),
    Register(0x103, "IFM_PAD_BOTTOM", (Field("", 16, 23),)),
    Register(0x104, "IFM_DEPTH_M1", PARAM_M1),
    Register(
        0x105,
        "IFM_PRECISION",
        (
            *_PRECISION_5X,
            Field("scale_mode", 24, 25, values={0: "OPA_OPB_16", 1: "OPA_32", 2: "OPB_32"}),
            Field("rounding", 30, 31, values=ROUNDING),
        ),
        U5X,
    ),
    Register(0x105, "IFM_PRECISION", _PRECISION_85, (U85,)),
    Register(0x107, "IFM_UPSCALE", (Field("", 16, 17, values={0: "NONE", 1: "NEAREST", 2: "ZEROS"}),)),
    Register(0x108, "IFM_BROADCAST", (Field("", 16, 19, values=BROADCAST_U85),), (U85,)),
    Register(0x109, "IFM_ZERO_POINT", PARAM_SIGNED),
    *_tiles("IFM", 0x100, 0x000),
    Register(0x10D, "IFM_IB_END", PARAM, U5X),
    Register(0x111, "OFM_WIDTH_M1", PARAM_M1),
    Register(0x112, "OFM_HEIGHT_M1", PARAM_M1),
    Register(0x113, "OFM_DEPTH_M1", PARAM_M1),
    Register(
        0x114,
        "OFM_PRECISION",
        (
            bit("signed", 16),
            Field("precision", 17, 18, values=PRECISION),
            Field("format", 22, 23, values=FORMAT),
            bit("scale_mode", 24, values={0: "PER_CHANNEL", 1: "GLOBAL"}),
            Field("rounding", 30, 31, values=ROUNDING),
        ),
        U5X,
    ),
    Register(
        0x114,
        "OFM_PRECISION",
        (
            bit("signed", 16),
            Field("precision", 17, 18, values=PRECISION_U85),
            Field("format", 22, 23, values=FORMAT),
            bit("scale_mode", 24, values={0: "PER_CHANNEL", 1: "GLOBAL"}),
            Field("reverse", 25, 26, values={0: "NONE", 1: "H", 2: "W", 3: "C"}),
            Field("transpose", 27, 29, values=TRANSPOSE),
            Field("storage", 30, 31, values=STORAGE),
        ),
        (U85,),
    ),
    Register(0x115, "OFM_BLK_WIDTH_M1", PARAM_M1),
    Register(0x116, "OFM_BLK_HEIGHT_M1", PARAM_M1),
    Register(0x117, "OFM_BLK_DEPTH_M1", PARAM_M1),
    Register(0x118, "OFM_ZERO_POINT", PARAM_SIGNED),
    *_tiles("OFM", 0x110, 0x010),
    Register(0x120, "KERNEL_WIDTH_M1", PARAM_M1),
    Register(0x121, "KERNEL_HEIGHT_M1", PARAM_M1),
    Register(
        0x122,
        "KERNEL_STRIDE",
        (
            bit("x0", 16),
            bit("y0", 17),
            bit("weight_order", 18, values={0: "DEPTH_FIRST", 1: "PART_KERNEL_FIRST"}),
            bit("dilation_x", 19, bias=1),
            bit("dilation_y", 20, bias=1),
            bit("decomposition", 21, values={0: "8X8"}),
            bit("x1", 22),
            bit("y1", 25),
        ),
    ),
    Register(0x123, "PARALLEL_MODE", (bit("", 16, values={0: "SINGLE_CORE", 1: "DUAL_CORE_DEPTH"}),), (U65,)),
    Register(0x124, "ACC_FORMAT", (Field("format", 16, 17, values={0: "I32", 1: "I40"}),), U5X),
    Register(
        0x124,
        "ACC_FORMAT",
        (
            Field("format", 16, 17, values={0: "I32", 1: "I48"}),
            Field("input", 20, 21, values={0: "RESET", 1: "KEEP", 2: "IFM2"}),
            bit("output", 22, values={0: "ENABLE", 1: "DISABLE"}),
            Field("microblock", 24, 26, values={0: "1X1", 1: "1X2", 2: "1X4", 3: "2X2", 4: "2X4", 5: "4X4"}),
        ),
        (U85,),
    ),
    Register(
        0x125,
        "ACTIVATION",
        (
            Field("function", 16, 20, values=ACTIVATION),
            Field("clip", 28, 30, values={0: "OFM_PRECISION", 2: "FORCE_UINT8", 3: "FORCE_INT8", 5: "FORCE_INT16"}),
        ),
        U5X,
    ),
    Register(
        0x125,
        "ACTIVATION",
        (
            Field("function", 16, 20, values=ACTIVATION_U85),
            Field("table", 21, 23),
            bit("clip", 28, values={0: "B16", 1: "NONE"}),
        ),
        (U85,),
    ),
    Register(0x126, "ACTIVATION_MIN", PARAM),
    Register(0x127, "ACTIVATION_MAX", PARAM),
    Register(0x128, "WEIGHT_REGION", (Field("", 16, 18),)),
    Register(0x129, "SCALE_REGION", (Field("", 16, 18),)),
    Register(0x12A, "RESIZE_X_SCALE_N_M1", (Field("", 16, 26, bias=1),), (U85,)),
    Register(0x12B, "RESIZE_Y_SCALE_N_M1", (Field("", 16, 26, bias=1),), (U85,)),
    Register(0x12C, "RESIZE_X_OFFSET", (Field("", 16, 27, signed=True),), (U85,)),
    Register(0x12D, "RESIZE_Y_OFFSET", (Field("", 16, 27, signed=True),), (U85,)),
    Register(0x12D, "AB_START", PARAM, U5X),
    Register(
        0x12E,
        "WEIGHT_FORMAT",
        (bit("decoder", 16, values={0: "SWD", 1: "FWD"}), bit("sparsity", 20, values={0: "NONE", 1: "2_4"})),
        (U85,),
    ),
    Register(0x12F, "BLOCKDEP", PARAM),
    Register(0x130, "DMA0_SRC_REGION", _DMA_REGION, U5X),
    Register(0x130, "DMA0_SRC_REGION", (*_DMA_REGION, bit("indexed", 27)), (U85,)),
    Register(0x131, "DMA0_DST_REGION", _DMA_REGION, U5X),
    Register(0x131, "DMA0_DST_REGION", (*_DMA_REGION[:2], bit("indexed", 27)), (U85,)),
    Register(0x132, "DMA0_SIZE0", PARAM),
    Register(0x133, "DMA0_SIZE1", PARAM),
    Register(0x134, "DMA0_IDX_REGION", (Field("", 16, 18),), (U85,)),
    Register(
        0x180,
        "IFM2_BROADCAST",
        (
            bit("h", 16),
            bit("w", 17),
            bit("c", 18),
            bit("operand_order", 22, values={0: "ORDER_B", 1: "ORDER_A"}),
            bit("constant", 23),
        ),
        U5X,
    ),
    Register(0x180, "IFM2_BROADCAST", (Field("", 16, 19, values=BROADCAST_U85),), (U85,)),
    Register(0x181, "IFM2_SCALAR", PARAM, U5X),
    Register(0x185, "IFM2_PRECISION", _PRECISION_5X, U5X),
    Register(0x185, "IFM2_PRECISION", _PRECISION_85, (U85,)),
    Register(0x189, "IFM2_ZERO_POINT", PARAM_SIGNED),
    *_tiles("IFM2", 0x180, 0x080),
    Register(0x18D, "IFM2_IB_START", PARAM, U5X),
    # CMD1 (npu-reference 2.4)
    Register(0x020, "WEIGHT_BASE", ADDRESS, cmd1=True),
    Register(0x021, "WEIGHT_LENGTH", (Field("", 32, 63),), cmd1=True),
    Register(0x022, "SCALE_BASE", ADDRESS, cmd1=True),
    Register(0x023, "SCALE_LENGTH", (Field("", 32, 51),), cmd1=True),
    Register(0x024, "OFM_SCALE", (Field("scale", 32, 63), Field("shift", 16, 21)), U5X, cmd1=True),
    Register(
        0x024,
        "OFM_SCALE",
        (
            Field("scale", 32, 62),
            Field("shift", 16, 21),
            Field("dbl_rnd", 22, 26),
            Field("rounding", 29, 31, values=ROUNDING_U85),
        ),
        (U85,),
        cmd1=True,
    ),
    Register(0x025, "OPA_SCALE", (Field("scale", 32, 63), Field("shift", 16, 21)), U5X, cmd1=True),
    Register(0x026, "OPB_SCALE", (Field("scale", 32, 47),), U5X, cmd1=True),
    _operand_scale("IFM_SCALE", 0x025),
    _operand_scale("IFM2_SCALE", 0x026),
    Register(0x027, "OP_SCALAR", (Field("", 32, 63, signed=True),), (U85,), cmd1=True),
    Register(0x030, "DMA0_SRC", ADDRESS, cmd1=True),
    Register(0x031, "DMA0_DST", ADDRESS, cmd1=True),
    Register(0x032, "DMA0_LEN", ADDRESS, cmd1=True),
    Register(0x033, "DMA0_SKIP0", STRIDE, U5X, cmd1=True),
    Register(0x034, "DMA0_SKIP1", STRIDE, U5X, cmd1=True),
    Register(0x033, "DMA0_SRC_STRIDE0", STRIDE, (U85,), cmd1=True),
    Register(0x034, "DMA0_SRC_STRIDE1", STRIDE, (U85,), cmd1=True),
    Register(0x035, "DMA0_DST_STRIDE0", STRIDE, (U85,), cmd1=True),
    Register(0x036, "DMA0_DST_STRIDE1", STRIDE, (U85,), cmd1=True),
    Register(0x037, "DMA0_IDX", ADDRESS, (U85,), cmd1=True),
    Register(0x038, "DMA0_IDX_MAX", (Field("", 32, 62),), (U85,), cmd1=True),
    Register(0x039, "DMA0_IDX_SKIP1", STRIDE, (U85,), cmd1=True),
    Register(0x090, "WEIGHT1_BASE", ADDRESS, (U65, U85), cmd1=True),
    Register(0x091, "WEIGHT1_LENGTH", (Field("", 32, 63),), (U65, U85), cmd1=True),
    Register(0x092, "SCALE1_BASE", ADDRESS, (U65,), cmd1=True),
    Register(0x093, "SCALE1_LENGTH", (Field("", 32, 51),), (U65,), cmd1=True),
    Register(0x092, "WEIGHT2_BASE", ADDRESS, (U85,), cmd1=True),
    Register(0x093, "WEIGHT2_LENGTH", (Field("", 32, 63),), (U85,), cmd1=True),
    Register(0x094, "WEIGHT3_BASE", ADDRESS, (U85,), cmd1=True),
    Register(0x095, "WEIGHT3_LENGTH", (Field("", 32, 63),), (U85,), cmd1=True),
    _resize_steps("RESIZE_X", 0x096),
    _resize_steps("RESIZE_Y", 0x097),
)


# ---------------------------------------------------------------------------------------------------------------------
# Operations (npu-reference 2.2)

POOL_MODES: Enum = {0: "MAX", 1: "AVERAGE", 2: "REDUCE_SUM"}
POOL_MODES_U85: Enum = {**POOL_MODES, 3: "SUM", 4: "NONE", 5: "MIN", 6: "ARGMAX_X", 7: "ARGMAX_Y"}
ELEMENTWISE_MODES: Enum = dict(enumerate(("MUL", "ADD", "SUB", "MIN", "MAX", "LRELU", "ABS", "CLZ", "SHR", "SHL")))
ELEMENTWISE_MODES_U85: Enum = {
    **ELEMENTWISE_MODES,
    10: "LSR",
    11: "DIV",
    16: "CMP_EQ",
    17: "CMP_NE",
    18: "CMP_GE",
    19: "CMP_GT",
    33: "AND",
    34: "OR",
    35: "XOR",
    36: "NOT",
    42: "AND_NOT",
}

OPERATIONS: tuple[Register, ...] = (
    Register(0x000, "NPU_OP_STOP", PARAM),
    Register(0x001, "NPU_OP_IRQ", PARAM),
    Register(0x002, "NPU_OP_CONV", (Field("mode", 16, 16, values={0: "WEIGHTS"}),), U5X),
    Register(0x002, "NPU_OP_CONV", (Field("mode", 16, 16, values={0: "WEIGHTS", 1: "WEIGHTS_IFM2"}),), (U85,)),
    Register(0x003, "NPU_OP_DEPTHWISE", ()),
    Register(0x005, "NPU_OP_POOL", (Field("mode", 16, 18, values=POOL_MODES),), U5X),
    Register(0x005, "NPU_OP_POOL", (Field("mode", 16, 18, values=POOL_MODES_U85),), (U85,)),
    Register(0x006, "NPU_OP_ELEMENTWISE", (Field("mode", 16, 21, values=ELEMENTWISE_MODES),), U5X),
    Register(0x006, "NPU_OP_ELEMENTWISE", (Field("mode", 16, 21, values=ELEMENTWISE_MODES_U85),), (U85,)),
    Register(0x007, "NPU_OP_RESIZE", (Field("mode", 16, 17, values={0: "BILINEAR", 1: "REPLICATE", 2: "NEAREST"}),), (U85,)),
    Register(0x010, "NPU_OP_DMA_START", ()),
    Register(0x011, "NPU_OP_DMA_WAIT", (Field("", 16, 19),)),
    Register(0x012, "NPU_OP_KERNEL_WAIT", (Field("", 16, 19),)),
    Register(0x013, "NPU_OP_PMU_MASK", (Field("", 16, 16),)),
    Register(
        0x100,
        "NPU_OP_BRANCH",
        (Field("cond", 16, 16, values={0: "ALWAYS", 1: "RF_TRUE"}), Field("target", 32, 63)),
        (U85,),
        cmd1=True,
    ),
)


@cache
def table(family: str) -> Mapping[tuple[bool, int], tuple[Register, bool]]:
    """Return the rows of one family as a map from (is_cmd1, opcode) to (row, is_operation)."""
    rows = {}
    for group, is_operation in ((REGISTERS, False), (OPERATIONS, True)):
        for row in group:
            if family in row.families:
                assert (row.cmd1, row.code) not in rows, row
                rows[row.cmd1, row.code] = row, is_operation
    return rows


@cache
def reset_state(family: str) -> Mapping[str, int]:
    """Return the decoded reset values of a family's registers (npu-reference 2.1)."""
    state: dict[str, int] = {}
    for row, is_operation in table(family).values():
        if not is_operation:
            state.update(row.decode(0))
    return state


@cache
def value_names(family: str) -> Mapping[str, Enum]:
    """Return the names of the enumerated values of registers and operations, by key."""
    return {key: f.values for row, _ in table(family).values() for key, f in row.named_fields if f.values is not None}

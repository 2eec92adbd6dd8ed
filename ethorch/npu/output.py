"""The output stage: scaling, zero point, clamp, lookup table, and store (npu-reference 6.2-6.4, 8.8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ethorch.npu import arithmetic, registers
from ethorch.npu.arithmetic import Scaling
from ethorch.npu.arrays import Array, Bytes, Dtype, Ints
from ethorch.npu.feature_map import STORAGE_CHAINED, STORAGE_NONE, FeatureMap, feature_map
from ethorch.npu.filters import FLOAT32_EXACT, FLOAT64_EXACT, Filter
from ethorch.npu.memory import Memory
from ethorch.npu.registers import U5X, U85
from ethorch.npu.stream import Operation
from ethorch.npu.tanh_table import tanh_table
from ethorch.support.errors import MachineFault

ACC_RESET, ACC_KEEP, ACC_IFM2 = 0, 1, 2  # ACC_FORMAT.input (npu-reference 2.5)

Clamp = tuple[int, int] | None
TRANSPOSES = {
    "HWC": (0, 1, 2),
    "WHC": (1, 0, 2),
    "HCW": (0, 2, 1),
    "WCH": (1, 2, 0),
    "CHW": (2, 0, 1),
    "CWH": (2, 1, 0),
}


@dataclass(frozen=True)
class Table:
    """The format of a lookup table: entry type, index origin, and interpolation formula, if any.

    On U85, tables are numbered, and table n starts at n * ``size_bytes``. U55 and U65 tables start at multiples of 256 bytes
    (npu-reference 7).
    """

    entry: str
    size_bytes: int
    origin: int = 0
    formula: Callable[[Ints, Ints, Ints], Ints] | None = None
    clamps: bool = True

    def lookup(self, values: Ints, memory: Bytes) -> Array:
        table: Array = memory.view(self.entry)
        if self.formula is None:
            entries: Array = table[values + self.origin]
            return entries
        pairs = table.reshape(-1, 2).astype(np.int64)
        return self.formula(values, pairs[:, 0], pairs[:, 1])


# U85 functions by name (npu-reference 2.5, 6.4).
TABLES_U85 = {
    "LUT_U8_U8": Table("u1", 256),
    "LUT_S8_S8": Table("i1", 256, 128),
    "LUT_S8_S16": Table("<i2", 512, 128),
    "LUT_S8_S32": Table("<i4", 1024, 128),
    "LUT_S16_S16": Table("<i2", 2048, formula=arithmetic.interpolate_16),
    "LUT_S16_S32": Table("<i2", 2048, formula=arithmetic.interpolate_32),
    "LUT_TANH": Table("<i2", 2048, formula=arithmetic.tanh_16, clamps=False),
    "LUT_SIGMOID": Table("<i2", 2048, formula=arithmetic.sigmoid_16, clamps=False),
}

# U55 and U65 tables by input type (the clip range) and OFM type (npu-reference 6.4).
TABLES_5X = {
    ("i1", "i1"): TABLES_U85["LUT_S8_S8"],
    ("u1", "u1"): TABLES_U85["LUT_U8_U8"],
    ("i1", "<i4"): TABLES_U85["LUT_S8_S32"],
    ("<i2", "<i2"): TABLES_U85["LUT_S16_S16"],
}
CLIP_TYPES = {"FORCE_UINT8": "u1", "FORCE_INT8": "i1", "FORCE_INT16": "<i2"}


@dataclass(frozen=True)
class Activation:
    """A clamp, optionally followed by a lookup table that is built in or stored in internal memory."""

    clamp: Clamp
    table: Table | None = None
    address: int = 0
    built_in: Bytes | None = None


def _range(dtype: Dtype | str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _register_limits(op: Operation, max_signed: bool, min_signed: bool) -> tuple[int, int]:
    low, high = op["ACTIVATION_MIN"], op["ACTIVATION_MAX"]
    return (
        low - 0x10000 if min_signed and low & 0x8000 else low,
        high - 0x10000 if max_signed and high & 0x8000 else high,
    )


def _activation_5x(op: Operation, ofm: Dtype) -> Activation:
    # A 32-bit OFM is clamped only if the clip setting selects a narrower type (npu-reference 6.3).
    names = registers.value_names(op.npu.family)
    function = names["ACTIVATION.function"][op["ACTIVATION.function"]]
    clip = names["ACTIVATION.clip"][op["ACTIVATION.clip"]]
    looked_up = CLIP_TYPES.get(clip, "i1" if ofm == np.int8 else ofm.str.lstrip("|"))
    signed = bool(op["OFM_PRECISION.signed"])
    limits: Clamp = None
    if np.dtype(looked_up).itemsize < 4:
        low, high = _range(looked_up)
        least, most = _register_limits(op, signed, signed)
        limits = max(low, least), min(high, most)
    if function == "NONE":
        return Activation(limits)
    if function in ("TANH", "SIGMOID"):
        if ofm.itemsize != 2:
            raise MachineFault(f"ACTIVATION.function {function} requires a 16-bit OFM, got {ofm}")
        return Activation(None, TABLES_U85[f"LUT_{function}"], built_in=tanh_table(function == "SIGMOID"))
    key = (looked_up.lstrip("|"), ofm.str.lstrip("|"))
    if key not in TABLES_5X:
        raise MachineFault(f"ACTIVATION.function {function} does not support a table with {key[0]} inputs and {key[1]} outputs")
    address = op.npu.lut_base + 256 * (op["ACTIVATION.function"] - 16)
    return Activation(limits, TABLES_5X[key], address)


def _activation_u85(op: Operation, ofm: Dtype) -> Activation:
    # npu-reference 6.3
    function = registers.ACTIVATION_U85[op["ACTIVATION.function"]]
    limits = None if op["ACTIVATION.clip"] else _register_limits(op, bool(op["OFM_PRECISION.signed"]), True)
    if function == "NONE":
        return Activation(limits)
    table = TABLES_U85[function]
    if not table.clamps:
        limits = None
    elif table.formula is not None:
        limits = _intersect(limits, _range("<i2"))
    else:
        limits = _intersect(limits, (-table.origin, 255 - table.origin))
    return Activation(limits, table, table.size_bytes * op["ACTIVATION.table"])


def _intersect(a: Clamp, b: tuple[int, int]) -> tuple[int, int]:
    return b if a is None else (max(a[0], b[0]), min(a[1], b[1]))


def activation(op: Operation, ofm: Dtype) -> Activation:
    """Return the activation of an operation. Raise MachineFault if the clamp is empty or the table is not supported."""
    result = ACTIVATIONS[op.npu.family](op, ofm)
    if result.clamp is not None and result.clamp[0] > result.clamp[1]:
        raise MachineFault(
            f"ACTIVATION_MIN, ACTIVATION_MAX and the clip range permit no value ({result.clamp[0]}..{result.clamp[1]} is empty)"
        )
    return result


ACTIVATIONS = {**dict.fromkeys(U5X, _activation_5x), U85: _activation_u85}


@dataclass(frozen=True, eq=False)
class Plan:
    """The scaling of a convolution's accumulators, in float64 if ``factor`` is set and in int64 otherwise."""

    filter: Filter
    bias: Array
    factor: Array | None
    addend: float = 0.0


class OutputStage:
    """The conversion of an operation's accumulators to OFM bytes.

    ``accumulate`` processes int64 accumulators. ``finish`` processes a convolution's accumulators, which are integers stored as
    floats, in float64 or int64 (see ``plan``).
    """

    def __init__(self, op: Operation):
        self.shape = op["OFM_HEIGHT"], op["OFM_WIDTH"], op["OFM_DEPTH"]
        self.transpose = TRANSPOSES[registers.TRANSPOSE[op.state.get("OFM_PRECISION.transpose", 0)]]
        self.reverse = op.state.get("OFM_PRECISION.reverse", 0) - 1  # axis, or -1
        h, w, c = (self.shape[axis] for axis in self.transpose)
        self.ofm = feature_map(op, "OFM", (h, w, c))
        self.input = op.state.get("ACC_FORMAT.input", ACC_RESET)
        self.keeps = bool(op.state.get("ACC_FORMAT.output", 0))
        if self.ofm.storage == STORAGE_NONE and not self.keeps:
            raise MachineFault("OFM_PRECISION.storage NONE requires an ACC_FORMAT.output that keeps the accumulators")
        self.ifm2 = feature_map(op, "IFM2", self.shape) if self.input == ACC_IFM2 else None
        self.activation = activation(op, self.ofm.dtype)
        self.whole = self.transpose != (0, 1, 2) or self.reverse >= 0 or self.ofm.storage == STORAGE_CHAINED
        self._plan: Plan | None = None

    @property
    def reads(self) -> tuple[FeatureMap, ...]:
        return () if self.ifm2 is None else (self.ifm2,)

    @property
    def writes(self) -> tuple[FeatureMap, ...]:
        return () if self.keeps else (self.ofm,)

    @property
    def needs_whole(self) -> bool:
        """True if all rows must be processed in one call, e.g. to transpose them or keep accumulators."""
        return self.whole or self.keeps or self.input != ACC_RESET

    # Exact integers.

    def accumulate(self, m: Memory, acc: Ints, scaling: Scaling | None, bias: Ints | int = 0) -> None:
        """Add earlier accumulators or IFM2, if used, to ``acc``. Keep the sum, or convert and store it (npu-reference 8.1)."""
        if self.input == ACC_KEEP:
            acc = acc + m.read_accumulator(self.shape)
        elif self.ifm2 is not None:
            acc = acc + (m.read(self.ifm2).astype(np.int64) - self.ifm2.zero_point)
        if self.keeps:
            m.accumulator = acc
        else:
            self.write(m, self.activate(m, self.quantize(acc + bias, scaling)))

    def quantize(self, acc: Ints, scaling: Scaling | None) -> Ints:
        """Scale accumulators, add the zero point, and clamp the result. Return int64 values for the lookup table or the output."""
        y = (acc if scaling is None else scaling(acc)) + self.ofm.zero_point
        if self.activation.clamp is not None:
            y = np.clip(y, *self.activation.clamp)
        return y

    def activate(self, m: Memory, y: Array) -> Array:
        """Convert quantized values to the stored type. Apply the lookup table if there is one."""
        a = self.activation
        if a.table is not None:
            y = a.table.lookup(y, m.lut(a.address, a.table.size_bytes) if a.built_in is None else a.built_in)
        return y.astype(self.ofm.dtype)

    def write(self, m: Memory, values: Array) -> None:
        """Transpose or reverse values [H, W, C] if necessary. Store them in memory or a chain buffer (npu-reference 8.5, 8.8)."""
        if self.reverse >= 0:
            values = np.flip(values, self.reverse)
        m.write(self.ofm, values.transpose(self.transpose))

    # Floating point sums.

    def plan(self, f: Filter) -> Plan:
        """Return the scaling of the accumulators of filter ``f``, in float64 if the result is always exact, or else in int64."""
        # y = floor((v*m + 2**(s-1)) / 2**s) + zp is computed as floor(v * (m * 2**-s) + (0.5 + zp)). In units of 2**-s, all terms
        # are integers, which are exact below 2**53. If v*m can exceed 2**53, y must be beyond the clamp whenever it does. This
        # holds if 2**(52-s) is beyond the clamp, because rounding errors are far smaller.
        if self._plan is not None and self._plan.filter is f:
            return self._plan
        bias = f.offset + f.bias
        plan = Plan(f, bias, None)
        clamp, zero_point, s = self.activation.clamp, self.ofm.zero_point, f.scaling.shift
        if clamp is not None and f.scaling.rounding == "NATURAL" and not self.keeps and self.input == ACC_RESET:
            unit = np.ldexp(1.0, s)
            reach = max(abs(clamp[0]), abs(clamp[1])) + abs(zero_point) + 2
            small = f.largest * f.scaling.multiplier < FLOAT64_EXACT / 2
            saturates = FLOAT64_EXACT / 2 / unit >= 2 * reach
            if np.all((s > 0) & ((abs(zero_point) + 1) * unit < FLOAT64_EXACT / 2) & (small | saturates)):
                wide = f.dtype if len(f.parts) == 1 and f.largest.max() < FLOAT32_EXACT else np.float64
                plan = Plan(f, bias.astype(wide), f.scaling.multiplier / unit, 0.5 + zero_point)
        self._plan = plan
        return plan

    def finish(self, m: Memory, plan: Plan, sums: Array, first: int) -> None:
        """Scale exact accumulators ``sums`` [n*W, C], and store n rows, starting at row ``first``. ``sums`` may be modified."""
        shape = (-1, *self.shape[1:])
        if plan.factor is None:
            acc = sums.astype(np.int64).reshape(shape)
            if self.needs_whole:
                self.accumulate(m, acc + plan.filter.offset, plan.filter.scaling, plan.filter.bias)
            else:
                values = self.activate(m, self.quantize(acc + plan.bias, plan.filter.scaling))
                m.write_rows(self.ofm, first, values)
            return
        if plan.bias.dtype == sums.dtype:
            sums += plan.bias
        else:
            sums = sums + plan.bias
        y = np.multiply(sums, plan.factor)
        y += plan.addend
        np.floor(y, out=y)
        assert self.activation.clamp is not None
        np.clip(y, *self.activation.clamp, out=y)
        values = self.activate(m, y.astype(np.int64) if self.activation.table else y).reshape(shape)
        if self.whole:
            self.write(m, values)
        else:
            m.write_rows(self.ofm, first, values)

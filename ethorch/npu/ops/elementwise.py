"""NPU_OP_ELEMENTWISE for U55 and U65 (npu-reference 6.7) and for U85 (npu-reference 8.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ethorch.npu import arithmetic, registers
from ethorch.npu.arithmetic import Scaling, scaling, wrap_32
from ethorch.npu.arrays import Array, Ints
from ethorch.npu.feature_map import STORAGE_NONE, FeatureMap, feature_map
from ethorch.npu.forms import IDENTITY, Elementwise, Value
from ethorch.npu.memory import Memory
from ethorch.npu.output import OutputStage
from ethorch.npu.prepared import Prepared, operation
from ethorch.npu.registers import ELEMENTWISE_MODES_U85, U5X, U85
from ethorch.npu.scaling import ofm_rounding, ofm_scaling
from ethorch.npu.stream import Operation
from ethorch.support.errors import MachineFault

Binary = Callable[[Ints, Ints], Ints]
UNARY = {"ABS", "CLZ", "LRELU", "NOT"}
SCALAR_U85 = 8  # BROADCAST value for OP_SCALAR (npu-reference 2.5)
PRE_SHIFT = {1: 20, 2: 15}  # IFM bytes -> left shift of the operands in a TFLite addition (npu-reference 6.7)
MOST_SHIFT = 63
PAIR_TABLE = 1 << 15  # least number of elements for which a table of all 2**16 pairs is faster


@dataclass(frozen=True, eq=False)
class Operand:
    """A feature map or a constant, from which the zero point is subtracted."""

    fm: FeatureMap
    constant: int | None = None

    def read(self, m: Memory) -> Ints:
        """Return the values as int64[h, w, c]. Broadcast axes have size 1."""
        if self.constant is not None:
            return np.full((1, 1, 1), self.constant - self.fm.zero_point, np.int64)
        x = m.read(self.fm).astype(np.int64)
        if self.fm.zero_point:
            x -= self.fm.zero_point
        return x

    @property
    def reads(self) -> tuple[FeatureMap, ...]:
        return () if self.constant is not None else (self.fm,)


def _extent(op: Operation, h: int, w: int, c: int) -> tuple[int, int, int]:
    return 1 if h else op["OFM_HEIGHT"], 1 if w else op["OFM_WIDTH"], 1 if c else op["OFM_DEPTH"]


def _prepare(
    op: Operation, operands: tuple[Operand, ...], function: Callable[[Operation], Value], scale: Scaling | None
) -> Prepared:
    form_value = function(op)
    stage, value = OutputStage(op), form_value.compute
    h, w, c = stage.shape
    check = CHECKS.get(form_value.name)
    form = Elementwise(
        form_value, tuple(o.fm if o.constant is None else o.constant - o.fm.zero_point for o in operands), scale, stage
    )
    bytes_only = all(o.fm.dtype.itemsize == 1 for o in operands) and len(operands) == 2
    if bytes_only and h * w * c >= PAIR_TABLE and not stage.needs_whole:
        return _by_pairs(form, operands, check)

    def run(m: Memory) -> None:
        values = [o.read(m) for o in operands]
        if check is not None:
            check(values[1])
        stage.accumulate(m, np.broadcast_to(value(*values), stage.shape), scale)

    reads = tuple(fm for o in operands for fm in o.reads)
    return Prepared(run, (*reads, *stage.reads), stage.writes, 0, h * w * c, form=form)


def _by_pairs(form: Elementwise, operands: tuple[Operand, ...], check: Callable[[Ints], None] | None) -> Prepared:
    value, scale, stage = form.value.compute, form.scaling, form.stage
    tables: list[Array] = []

    def all_values(o: Operand) -> Ints:
        if o.constant is not None:
            return np.full(256, o.constant - o.fm.zero_point, np.int64)
        return np.arange(256, dtype=np.uint8).view(o.fm.dtype).astype(np.int64) - o.fm.zero_point

    def index(m: Memory, o: Operand) -> Array:
        return np.zeros((1, 1, 1), np.uint8) if o.constant is not None else m.read(o.fm).view(np.uint8)

    def run(m: Memory) -> None:
        if not tables:
            a, b = map(all_values, operands)
            tables.append(_narrow(stage.quantize(value(a[:, None], b[None, :]), scale)))
        if check is not None:
            check(operands[1].read(m))
        table = stage.activate(m, tables[0]).ravel()
        a, b = (index(m, o) for o in operands)
        pair = np.left_shift(a, 8, dtype=np.uint16) | b
        stage.write(m, np.broadcast_to(np.take(table, pair), stage.shape))

    reads = tuple(fm for o in operands for fm in o.reads)
    return Prepared(run, reads, stage.writes, 0, stage.ofm.elements, form=form)


def _narrow(values: Ints) -> Array:
    return values.astype(np.int32) if np.array_equal(values, values.astype(np.int32)) else values


# Checks of the second operand. The functions do not check, because a table of all pairs also contains values that the data do
# not contain.


def _check_shift_amounts(b: Ints) -> None:
    if b.size and (b.min() < 0 or b.max() > MOST_SHIFT):
        raise MachineFault(f"expected shift amounts of 0..{MOST_SHIFT}, got {b.min()}..{b.max()}")


def _check_divisors(b: Ints) -> None:
    if not np.all(b):
        raise MachineFault("DIV divides by zero")


CHECKS: dict[str, Callable[[Ints], None]] = {
    **dict.fromkeys(("SHR", "SHL", "LSR"), _check_shift_amounts),
    "DIV": _check_divisors,
}


# ---------------------------------------------------------------------------------------------------------------------
# U55 and U65


@operation("NPU_OP_ELEMENTWISE", *U5X)
def elementwise_5x(op: Operation) -> Prepared:
    """Prepare the operation OFM = output stage of f(IFM - zero point, IFM2 - zero point).

    IFM2_BROADCAST.operand_order swaps the operands. IFM2 can be broadcast or constant.
    """
    name = ELEMENTWISE_MODES_U85[op.mode]
    ifm = Operand(feature_map(op, "IFM", _extent(op, 0, 0, 0)))
    if name in UNARY:
        operands: tuple[Operand, ...] = (ifm,)
    else:
        axes = (op[f"IFM2_BROADCAST.{a}"] for a in "hwc")
        fm2 = feature_map(op, "IFM2", _extent(op, *axes))
        constant = op["IFM2_SCALAR"] if op["IFM2_BROADCAST.constant"] else None
        if constant is not None and op["IFM2_PRECISION.signed"] and constant & 0x8000:
            constant -= 0x10000
        operands = (ifm, Operand(fm2, constant))
        if op["IFM2_BROADCAST.operand_order"]:
            operands = operands[::-1]
    unscaled = not op["OFM_PRECISION.scale_mode"]
    return _prepare(op, operands, VALUES_5X[name], None if unscaled or name == "LRELU" else _output_scale(op, name))


def _output_scale(op: Operation, name: str) -> Scaling:
    # A 32-bit MUL ignores the multiplier (npu-reference 6.7).
    scale = ofm_scaling(op)
    if name == "MUL" and op["IFM_PRECISION.precision"] == 2:
        return Scaling(np.ones_like(scale.multiplier), scale.shift, scale.rounding)
    return scale


def _sum_5x(sign: int) -> Callable[[Operation], Value]:
    name = "ADD" if sign > 0 else "SUB"

    def prepare(op: Operation) -> Value:
        a_scale, b_scale = _operand_scales_5x(op)
        if op["IFM_PRECISION.precision"] == 2:
            return Value(name, lambda a, b: wrap_32(a + sign * b), wraps=True)
        return Value(name, lambda a, b: a_scale(a) + sign * b_scale(b), (a_scale, b_scale))

    return prepare


def _operand_scales_5x(op: Operation) -> tuple[Scaling, Scaling]:
    # npu-reference 6.7
    mode = op["IFM_PRECISION.scale_mode"]
    if mode == 0:
        return scaling(op["OPA_SCALE.scale"], 0, "NATURAL"), scaling(op["OPB_SCALE.scale"], 0, "NATURAL")
    bits = PRE_SHIFT.get(1 << op["IFM_PRECISION.precision"])
    if bits is None:
        raise MachineFault("OPA_32/OPB_32 scaling of a 32-bit IFM is not supported; expected 8 or 16 bits")
    rounding = registers.ROUNDING[op["IFM_PRECISION.rounding"]]
    scaled = scaling(op["OPA_SCALE.scale"], op["OPA_SCALE.shift"], rounding, bits)
    shifted = scaling(1 << (bits - 1), 0, "NATURAL")
    return (scaled, shifted) if mode == 1 else (shifted, scaled)


def _lrelu_5x(op: Operation) -> Value:
    return _leaky(IDENTITY, ofm_scaling(op))


def _leaky(identity: Scaling, alpha: Scaling) -> Value:
    return Value("LRELU", lambda a: np.where(a >= 0, identity(a), alpha(a)), (identity, alpha))


def _shift_right(op: Operation) -> Value:
    # Only NATURAL rounds (npu-reference 6.7).
    rounds = ofm_rounding(op) == "NATURAL"

    def value(a: Ints, b: Ints) -> Ints:
        b = _clip_shift(b)
        half = np.where(b > 0, np.int64(1) << np.maximum(b - 1, 0), np.int64(0)) if rounds else 0
        return (a + half) >> b

    return Value("SHR", value, rounds=rounds)


def _clip_shift(b: Ints) -> Ints:
    return np.clip(b, 0, MOST_SHIFT)


def _shift_left(op: Operation) -> Value:
    return Value("SHL", lambda a, b: wrap_32(a << _clip_shift(b)), wraps=True)


def _always(name: str, f: Callable[..., Ints]) -> Callable[[Operation], Value]:
    return lambda op: Value(name, f)


VALUES_5X: dict[str, Callable[[Operation], Value]] = {
    "MUL": _always("MUL", np.multiply),
    "ADD": _sum_5x(1),
    "SUB": _sum_5x(-1),
    "MIN": _always("MIN", np.minimum),
    "MAX": _always("MAX", np.maximum),
    "LRELU": _lrelu_5x,
    "ABS": _always("ABS", np.abs),
    "CLZ": _always("CLZ", arithmetic.leading_zeros_32),
    "SHR": _shift_right,
    "SHL": _shift_left,
}

# ---------------------------------------------------------------------------------------------------------------------
# U85


@operation("NPU_OP_ELEMENTWISE", U85)
def elementwise_u85(op: Operation) -> Prepared:
    """Prepare the operation OFM = output stage of f(IFM - zero point, IFM2 - zero point).

    Each operand can be broadcast, chained or constant (OP_SCALAR).
    """
    name = ELEMENTWISE_MODES_U85[op.mode]
    operands = [_operand_u85(op, "IFM")]
    if name not in UNARY:
        operands.append(_operand_u85(op, "IFM2"))
    return _prepare(op, tuple(operands), VALUES_85[name], _output_scale(op, name))


def _operand_u85(op: Operation, prefix: str) -> Operand:
    broadcast = op[f"{prefix}_BROADCAST"]
    if broadcast == SCALAR_U85 or op[f"{prefix}_PRECISION.storage"] == STORAGE_NONE:
        return Operand(feature_map(op, prefix, (1, 1, 1)), op["OP_SCALAR"])
    return Operand(feature_map(op, prefix, _extent(op, broadcast & 1, broadcast & 2, broadcast & 4)))


def _operand_scale_u85(op: Operation, prefix: str) -> Scaling:
    key = f"{prefix}_SCALE"
    rounding = registers.ROUNDING_U85[op[f"{key}.rounding"]]
    return scaling(op[f"{key}.scale"], op[f"{key}.shift"], rounding, op[f"{key}.dbl_rnd"])


def _with_scales(name: str, f: Binary, wraps: bool = False) -> Callable[[Operation], Value]:
    def prepare(op: Operation) -> Value:
        scales = a_scale, b_scale = _operand_scale_u85(op, "IFM"), _operand_scale_u85(op, "IFM2")
        if wraps and op["IFM_PRECISION.precision"] == 2:
            return Value(name, lambda a, b: wrap_32(f(a_scale(a), b_scale(b))), scales, wraps=True)
        return Value(name, lambda a, b: f(a_scale(a), b_scale(b)), scales)

    return prepare


def _abs_u85(op: Operation) -> Value:
    scale = _operand_scale_u85(op, "IFM")
    return Value("ABS", lambda a: np.abs(scale(a)), (scale, IDENTITY))


def _lrelu_u85(op: Operation) -> Value:
    return _leaky(_operand_scale_u85(op, "IFM"), _operand_scale_u85(op, "IFM2"))


def _logical_shift_right(op: Operation) -> Value:
    if op["IFM_PRECISION.precision"] > 2:
        raise MachineFault("LSR of a 64-bit IFM is not supported; expected 8, 16 or 32 bits")
    mask = (1 << (8 << op["IFM_PRECISION.precision"])) - 1
    return Value("LSR", lambda a, b: (a & mask) >> _clip_shift(b), mask=mask)


def _divide(a: Ints, b: Ints) -> Ints:
    q = np.abs(a) // np.maximum(np.abs(b), 1)
    return np.where((a < 0) == (b < 0), q, -q)


def _compare(name: str, f: np.ufunc) -> Callable[[Operation], Value]:
    # True is -1 (npu-reference 8.4). Operands are scaled because Vela folds RESCALEs into comparisons.
    return _with_scales(name, lambda a, b: -f(a, b).astype(np.int64))


VALUES_85: dict[str, Callable[[Operation], Value]] = {
    "MUL": _always("MUL", np.multiply),
    "ADD": _with_scales("ADD", np.add, wraps=True),
    "SUB": _with_scales("SUB", np.subtract, wraps=True),
    "MIN": _with_scales("MIN", np.minimum),
    "MAX": _with_scales("MAX", np.maximum),
    "LRELU": _lrelu_u85,
    "ABS": _abs_u85,
    "CLZ": _always("CLZ", arithmetic.leading_zeros_32),
    "SHR": _shift_right,
    "SHL": _shift_left,
    "LSR": _logical_shift_right,
    "DIV": _always("DIV", _divide),
    "CMP_EQ": _compare("CMP_EQ", np.equal),
    "CMP_NE": _compare("CMP_NE", np.not_equal),
    "CMP_GE": _compare("CMP_GE", np.greater_equal),
    "CMP_GT": _compare("CMP_GT", np.greater),
    "AND": _always("AND", np.bitwise_and),
    "OR": _always("OR", np.bitwise_or),
    "XOR": _always("XOR", np.bitwise_xor),
    "NOT": _always("NOT", np.invert),
    "AND_NOT": _always("AND_NOT", lambda a, b: a & ~b),
}

"""Builder: emits TOSA operators, one at a time, checked against their row and the target's limits.

The upper half is TOSA itself: ``emit``, ``const``. The lower half is what lowerings say all day: bring a quantized
tensor into NHWC or into its logical order, widen it to INT32, requantize an accumulator, look up a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ethorch.errors import Reason, Unsupported
from ethorch.layout import Dims, arrangement, contiguous, refine
from ethorch.qparams import QParams, QTensor, dtype_range, multipliers_and_shifts
from ethorch.tosa.ir import DTYPES, FLOATS, NOWHERE, Graph, Op, Origin, Value
from ethorch.tosa.opset import OPSET
from ethorch.tosa.reference import evaluate, foldable
from ethorch.tosa.tables import FAR, Piece, pieces, sums_fit

if TYPE_CHECKING:
    from ethorch.target import Limits


class Builder:
    """Appends to ``graph``. ``limits`` are the target's, by operator; ``forms`` names which of several exact
    forms the target runs fastest; ``floats`` are the float dtypes it has, ``integers`` says whether it has quantized arithmetic;
    ``origin`` is stamped on what is emitted."""

    def __init__(
        self, limits: Mapping[str, Limits] | None = None, *, forms: Mapping[str, str] | None = None, target: str = "",
        floats: Sequence[str] = (), integers: bool = True,
    ):  # fmt: skip
        self.graph = Graph()
        self.limits = limits or {}
        self.forms = forms or {}
        self.target = target
        self.floats = frozenset(floats)
        self.integers = integers
        self.origin: Origin = NOWHERE
        self.result_shape: tuple[int, ...] = ()  # logical shape of the operator being lowered, set by the walk
        self.result_dtype: str = ""  # and its TOSA dtype, "" where TOSA has none
        self._names: dict[str, int] = {}
        self._arranged: dict[tuple[int, tuple[int, ...], tuple[int, ...]], tuple[Value, Value]] = {}

    @property
    def truth(self) -> str:
        """How the target holds truth values: BOOL, or INT8 with 0 and 1."""
        return self.forms.get("truth", "BOOL")

    # --- TOSA ---------------------------------------------------------------------------------------------------------

    def name(self, base: str) -> str:
        """``base``, or ``base_1``, ``base_2``... where it is taken."""
        count = self._names.get(base, 0)
        self._names[base] = count + 1
        return self.name(f"{base}_{count}") if count else base

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        value = Value(self.name(name), tuple(shape), dtype, self.origin)
        self.graph.inputs.append(value)
        return value

    def region(self, name: str) -> Builder:
        """A Builder of the same target for a region of this graph's; no two values of both have one name."""
        inner = Builder(self.limits, forms=self.forms, target=self.target, floats=tuple(self.floats), integers=self.integers)
        inner.graph.name, inner._names = self.name(name), self._names
        return inner

    def const(self, data: np.ndarray, dtype: str | None = None, name: str = "const") -> Value:
        """A constant. The dtype follows from the array's unless given (INT4, INT48, BF16)."""
        array = np.asarray(data)
        if dtype is None:
            dtype = next(tosa for tosa, numpy_type in DTYPES.items() if array.dtype == numpy_type and tosa != "INT4")
        return Value(self.name(name), array.shape, dtype, self.origin, array)

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Append one operator and return its result; folded when all its operands are constants.

        Raises:
            Unsupported: TOSA has no such operator of that dtype, or the target's limits row does not allow these operands.
        """
        row = OPSET[name]
        assert row.operands is None or len(operands) == len(row.operands), f"{name} takes {row.operands}, got {operands}"
        expected = {*row.const_operands, *row.attrs}
        assert set(attrs) == expected, f"{name} has attributes {sorted(expected)}, got {sorted(attrs)}"
        if row.dtypes is not None and operands[0].dtype not in row.dtypes:
            allowed = ", ".join(sorted(row.dtypes))
            raise self.refuse(f"{name}.dtype", f"{name} of {operands[0].dtype}; TOSA 1.0 allows {allowed}")
        inferred = row.infer(operands, attrs)
        if foldable(name, operands, attrs):
            data = evaluate(name, [value.data for value in operands if value.data is not None], attrs)
            return Value(self.name("folded"), inferred[0][0], inferred[0][1], self.origin, data)
        if name in self.limits:
            features = row.features(operands, attrs, inferred) if row.features else {}
            reason = self.limits[name].refuse(name, operands[0].dtype, features, self.target)
            if reason:
                raise Unsupported(reason)
        base = self.origin.node or name.lower()
        results = tuple(Value(self.name(base), shape, dtype, self.origin) for shape, dtype in inferred)
        self.graph.ops.append(Op(name, operands, dict(attrs), results))
        return results[0]

    def refuse(self, id: str, text: str, way_out: str = "") -> Unsupported:
        """The exception to raise for a refusal of the current operator."""
        return Unsupported(Reason(id, text, way_out))

    # --- how tensors lie ------------------------------------------------------------------------------------------------

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        return value if value.shape == tuple(shape) else self.emit("RESHAPE", value, shape=tuple(shape))

    def ordered(self, value: Value, order: Sequence[int], shape: Sequence[int]) -> Value:
        """``value`` with its stored axes in ``order``, as ``shape``: nothing, a RESHAPE, or a TRANSPOSE; made once."""
        key = (id(value), tuple(order), tuple(shape))
        if key not in self._arranged:
            move = arrangement(value.shape, order)
            moved = value
            if move is not None and self.forms.get("transpose") == "whole" and value.rank <= 4:
                perms = (*(axis for axis in range(value.rank) if axis not in order), *order)
                moved = self.emit("TRANSPOSE", value, perms=perms)
            elif move is not None:
                moved = self.emit("TRANSPOSE", self.reshape(value, move[0]), perms=move[1])
            self._arranged[key] = value, self.reshape(moved, shape)  # with the value, whose id is the key
        return self._arranged[key][1]

    def stored_as(self, x: QTensor, groups: Sequence[Sequence[int]]) -> Value:
        """``x`` stored with one axis per group of logical dimensions, in that order (dims in no group have extent 1)."""
        shape = x.shape
        order = [axis for group in groups for dim in group for axis in x.dims[dim]]
        return self.ordered(x.value, order, [math.prod(shape[dim] for dim in group) for group in groups])

    def logical(self, x: QTensor) -> Value:
        """``x`` stored contiguously in its logical shape, as PyTorch's contiguous format."""
        return self.stored_as(x, [(dim,) for dim in range(x.rank)])

    def nhwc(self, x: QTensor) -> Value:
        """A logical [N, C, H, W] (or [C, H, W]) tensor stored [N, H, W, C]."""
        if x.rank == 3:
            return self.stored_as(x, [(), (1,), (2,), (0,)])
        return self.stored_as(x, [(0,), (2,), (3,), (1,)])

    def from_nhwc(self, value: Value, q: QParams | None, rank: int = 4) -> QTensor:
        """The inverse of ``nhwc``: logical [N, C, H, W] over a value stored [N, H, W, C]."""
        return QTensor(value, ((0,), (3,), (1,), (2,)) if rank == 4 else ((3,), (1,), (2,)), q)

    def view(self, x: QTensor, shape: Sequence[int]) -> QTensor:
        """Reshape the logical tensor; data moves only where no stored order can express the new shape."""
        refined = refine(x.value.shape, x.dims, shape)
        if refined is None:
            return QTensor(self.reshape(self.logical(x), shape), contiguous(shape), x.q)
        stored, dims = refined
        return QTensor(self.reshape(x.value, stored), dims, x.q)

    def permute(self, x: QTensor, order: Sequence[int]) -> QTensor:
        """Logical permute; nothing moves. Per-channel qparams follow their axis."""
        q = x.q
        if q is not None and q.axis is not None:
            q = QParams(q.scale, q.zero_point, q.qmin, q.qmax, q.dtype, list(order).index(q.axis))
        return QTensor(x.value, tuple(x.dims[dim] for dim in order), q)

    def axis_of(self, x: QTensor, dim: int) -> tuple[Value, int, Dims]:
        """``x`` so stored that logical ``dim`` is one axis: (value, that axis, dims of the value)."""
        dim %= x.rank
        if len(x.dims[dim]) == 1:
            return x.value, x.dims[dim][0], x.dims
        if x.shape[dim] == 1:
            value = self.reshape(x.value, (*x.value.shape, 1))
            axis = x.value.rank
            return value, axis, tuple((axis,) if k == dim else axes for k, axes in enumerate(x.dims))
        value = self.logical(x)
        return value, dim, contiguous(x.shape)

    def alike(self, tensors: Sequence[QTensor]) -> tuple[list[Value], Dims]:
        """Tensors of one rank, each stored with one axis per logical dim, all in the order of the largest."""
        leader = max((x for x in tensors if not x.value.is_const), key=lambda x: math.prod(x.shape), default=tensors[0])
        order = list(range(leader.rank))
        if all(len(axes) <= 1 for axes in leader.dims):
            order.sort(key=lambda dim: leader.dims[dim] or (-1,))
        dims = tuple((order.index(dim),) for dim in range(leader.rank))
        return [self.stored_as(x, [(dim,) for dim in order]) for x in tensors], dims

    def aligned(self, *tensors: QTensor) -> tuple[list[Value], Dims]:
        """Operands of a broadcasting operator, stored alike with equal ranks, and the dims of the result.

        The operand with the most elements keeps its order; the others follow it where the factors agree.
        """
        rank = max(x.rank for x in tensors)
        if rank == 0:
            return [self.logical(x) for x in tensors], ()
        padded = [QTensor(x.value, ((),) * (rank - x.rank) + x.dims, x.q) for x in tensors]
        shapes = [x.shape for x in padded]
        extents = tuple(max(extents) if 0 not in extents else 0 for extents in zip(*shapes, strict=True))
        leader = max((x for x in padded if not x.value.is_const), key=lambda x: math.prod(x.shape), default=padded[0])
        if any(leader.shape[d] not in (1, extents[d]) for d in range(rank)) or not self._follows(leader, padded, extents):
            return [self.logical(x) for x in padded], contiguous(extents)
        # Slots: the stored axes of the result, in the leader's order; a dim the leader broadcasts is appended.
        slots: list[tuple[int, int]] = []  # (logical dim, factor index), in stored order
        places = {axis: (dim, k) for dim, axes in enumerate(leader.dims) for k, axis in enumerate(axes)}
        slots = [places[axis] for axis in range(leader.value.rank) if axis in places]
        missing = [(dim, 0) for dim in range(rank) if extents[dim] > 1 and leader.shape[dim] == 1 and not leader.dims[dim]]
        slots = [*missing, *slots] or [(0, 0)]
        values = []
        for x in padded:
            order, shape = [], []
            for dim, k in slots:
                axes = x.dims[dim]
                if x.shape[dim] == 1 or k >= len(axes):
                    shape.append(1)
                else:
                    order.append(axes[k])
                    shape.append(x.value.shape[axes[k]])
            values.append(self.ordered(x.value, order, shape))
        index = {slot: k for k, slot in enumerate(slots)}
        dims = tuple(tuple(index[dim, k] for k in range(len(leader.dims[dim]) or 1) if (dim, k) in index) for dim in range(rank))
        return values, dims

    @staticmethod
    def _follows(leader: QTensor, tensors: Sequence[QTensor], extents: tuple[int, ...]) -> bool:
        """Do all operands factor every dim as the leader does, or have extent 1 there?"""

        def factors(x: QTensor, dim: int) -> list[int]:
            return [x.value.shape[axis] for axis in x.dims[dim]]

        for x in tensors:
            for dim in range(x.rank):
                if x.shape[dim] == 1 or x is leader:
                    continue
                if leader.shape[dim] == 1:
                    if leader.dims[dim] or len(x.dims[dim]) != 1:
                        return False
                elif factors(x, dim) != factors(leader, dim):
                    return False
        return True

    # --- numbers --------------------------------------------------------------------------------------------------------

    def rescale(
        self,
        value: Value,
        scale: float | Sequence[float],
        *,
        input_zp: int = 0,
        output_zp: int = 0,
        dtype: str = "INT8",
    ) -> Value:
        """RESCALE, SINGLE_ROUND: dtype((value - input_zp) * scale + output_zp); a sequence is per last stored axis.

        Floats are multiplied, in their own dtype unless ``dtype`` is another float's: integer dtypes are steps on the way.

        Raises:
            Unsupported: ``requantize.scale``, where a scale is zero, not finite or out of RESCALE's range.
        """
        scales = [float(scale)] if isinstance(scale, (int, float)) else [float(s) for s in scale]
        if value.dtype in FLOATS:
            if set(scales) != {1.0}:
                factors = np.asarray(scales, DTYPES[value.dtype])
                shape = (1,) * value.rank if len(scales) == 1 else (1,) * (value.rank - 1) + (len(scales),)
                value = self.emit("MUL", value, self.const(factors.reshape(shape), value.dtype), shift=0)
            return self.cast(value, dtype if dtype in FLOATS else value.dtype)
        if dtype in FLOATS:
            return self.rescale(self.dequantized(value, input_zp), scale, dtype=dtype)
        try:
            multipliers, shifts = multipliers_and_shifts(scales, bits=16 if value.dtype == "INT48" else 32)
        except OverflowError as error:
            raise self.refuse("requantize.scale", f"cannot requantize: {error}") from None
        return self.emit(
            "RESCALE", value, multiplier=multipliers, shift=shifts, input_zp=input_zp, output_zp=output_zp, dtype=dtype,
            per_channel=len(scales) > 1, input_unsigned=False, output_unsigned=False,
        )  # fmt: skip

    def requantize(self, acc: Value, scale: float | Sequence[float], out: QParams) -> Value:
        """An accumulator that means ``acc * scale`` as codes of ``out``, rounded once, saturated to ``out``'s range."""
        scales = [float(scale)] if isinstance(scale, (int, float)) else list(scale)
        scaled = self.rescale(acc, [s / out.step for s in scales], output_zp=out.zp, dtype=out.dtype)
        return self.clamp(scaled, out.qmin, out.qmax)

    def dequantized(self, value: Value, zero_point: int) -> Value:
        """FP32 value - zero_point of integers; of truth values 0 or 1. TOSA 1.0 CAST, SUB; SELECT."""
        if value.dtype == "BOOL":
            one, zero = (self.const(np.full((1,) * value.rank, number, np.float32)) for number in (1, 0))
            return self.emit("SELECT", value, one, zero)
        value = self.cast(value, "FP32")
        return value if zero_point == 0 else self.emit("SUB", value, self.const(np.full((1,) * value.rank, zero_point, np.float32)))

    def cast(self, value: Value, dtype: str) -> Value:
        """CAST, left out where it has that dtype already; of a constant, done now."""
        if value.dtype == dtype:
            return value
        if value.data is not None and dtype in FLOATS:
            return self.const(value.data.astype(DTYPES[dtype]), dtype, value.name)
        return self.emit("CAST", value, dtype=dtype)

    def clamp(self, value: Value, low: float, high: float) -> Value:
        """CLAMP, left out where it is the whole range of the dtype."""
        if value.dtype in FLOATS:
            bound = float(ml_dtypes.finfo(DTYPES[value.dtype]).max)
            low, high = max(low, -bound), min(high, bound)
            return value if (low, high) == (-bound, bound) else self.emit("CLAMP", value, min_val=float(low), max_val=float(high))
        full = dtype_range(value.dtype)
        low, high = max(low, full[0]), min(high, full[1])
        if (low, high) == full:
            return value
        return self.emit("CLAMP", value, min_val=low, max_val=high)

    def quantized(self, value: Value, out: QParams) -> Value:
        """Floats as codes of ``out``: round(value / scale), halves to even, then the zero point. TOSA 1.0 MUL, CAST."""
        inverse = float(np.float32(1.0) / np.float32(out.step))
        scaled = self.clamp(self.rescale(value, inverse, dtype="FP32"), -(2.0**22), 2.0**22)
        codes = self.cast(self.cast(scaled, "INT32"), "FP32")
        if out.zp:
            codes = self.emit("ADD", codes, self.const(np.full((1,) * value.rank, out.zp, np.float32)))
        return self.cast(self.clamp(codes, out.qmin, out.qmax), out.dtype)

    def to_int32(self, x: QTensor) -> QTensor:
        """INT32 with the zero point removed; one RESCALE per use, since Vela fuses only those with a single user."""
        return QTensor(self.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32"), x.dims, x.q)

    def requantized(self, x: QTensor, out: QParams) -> QTensor:
        """``x`` in the qparams ``out``: itself where they are equal, else one RESCALE and a CLAMP if ``out`` is narrow."""
        q = x.qparams
        if q.is_real and not out.is_real:
            return QTensor(self.quantized(x.value, out), x.dims, out)
        if (q.scale, q.zero_point, q.dtype) == (out.scale, out.zero_point, out.dtype):
            value = x.value if out.qmin <= q.qmin and q.qmax <= out.qmax else self.clamp(x.value, out.qmin, out.qmax)
        else:
            value = self.rescale(x.value, q.step / out.step, input_zp=q.zp, output_zp=out.zp, dtype=out.dtype)
            value = self.clamp(value, out.qmin, out.qmax)
        return QTensor(value, x.dims, out)

    def table(self, x: QTensor, real: np.ndarray, out: QParams, *, exact: bool = False) -> QTensor:
        """``real``: the function's value at each of ``x.qparams.table_inputs``; in codes of ``out``.

        TOSA 1.0 TABLE. int8: 256 entries, index = value + 128. int16: 513 entries, index = (value + 32768) >> 7, the low 7
        bits interpolate between an entry and the next; the INT32 result has 7 more fractional bits, which a RESCALE rounds off.
        Where that is too coarse, or the function jumps (``exact``), finer TABLEs are added (see ethorch.tosa.tables).
        Entries are as wide as the input. A wider output is looked up at the grid of a 16-bit table, which is exact; a narrower
        one is looked up in 1/128 of its steps and then rounded.
        """
        source, real = x.value.dtype, _continued(real)
        if source == out.dtype == "INT8":
            looked_up = self.emit("TABLE", x.value, self.const(out.quantize(real).astype(np.int8), name="table"))
            return self.requantized(QTensor(looked_up, x.dims, out), out)
        if source == "INT8":
            value = self.rescale(x.value, 128.0, dtype="INT16")  # code * 128 is entry code + 256
            entries = out.quantize(np.pad(real, (128, 129), mode="edge")).astype(np.int16)
            looked_up = self.sum_of_tables(value, [Piece(-32768, 1, 1.0, entries)])
            return QTensor(self.clamp(looked_up, out.qmin, out.qmax), x.dims, out)
        fine = _in_16_bits(out)
        made = pieces(_codes(real, fine), fine.qmin, fine.qmax, exact=True) if exact else []
        made = made or pieces(_codes(real, fine), fine.qmin, fine.qmax, far=FAR if fine == out else 4 * FAR)
        looked_up = self.clamp(self.sum_of_tables(x.value, made), fine.qmin, fine.qmax)
        return self.requantized(QTensor(looked_up, x.dims, fine), out)

    @staticmethod
    def follows_steps(real: np.ndarray, out: QParams) -> bool:
        """Is there an ``exact`` table of ``real`` for an int16 input?"""
        fine = _in_16_bits(out)
        return bool(pieces(_codes(_continued(real), fine), fine.qmin, fine.qmax, exact=True))

    def sum_of_tables(self, value: Value, made: Sequence[Piece]) -> Value:
        """INT16 sum of what the TABLEs have for an INT16 value, saturated."""
        total: Value | None = None
        fits = sums_fit(made)
        for piece in made:
            seen = value
            if piece.zoom > 1:
                middle = self.const(np.full((1,) * value.rank, piece.middle, np.int32), name="middle")
                seen = self.rescale(self.emit("SUB", self.rescale(value, 1.0, dtype="INT32"), middle), piece.zoom, dtype="INT16")
            looked_up = self.emit("TABLE", seen, self.const(piece.entries, name="table"))
            if len(made) == 1:
                return self.rescale(looked_up, piece.unit / 128, dtype="INT16")
            part = self.rescale(looked_up, 1 / 128, dtype="INT16")
            wide = self.rescale(part, piece.unit, dtype="INT32")
            if total is None:
                total = part if fits and piece.unit == 1 else self.rescale(wide, 1.0, dtype="INT16") if fits else wide
                continue
            wide = self.emit("ADD", self.rescale(total, 1.0, dtype="INT32") if fits else total, wide)
            total = self.rescale(wide, 1.0, dtype="INT16") if fits else wide
        assert total is not None
        return total if total.dtype == "INT16" else self.rescale(total, 1.0, dtype="INT16")

    def wrapped(self, x: QTensor) -> QTensor:
        """Plain integers in the dtype PyTorch gives them, modulo its width: INT32 to INT8 or INT16; anything else as it is."""
        dtype = self.result_dtype
        if x.value.dtype != "INT32" or dtype not in ("INT8", "INT16"):
            return x
        spare = self.const(np.full((1,) * x.value.rank, {"INT8": 24, "INT16": 16}[dtype], np.int32))
        high = self.emit("LOGICAL_LEFT_SHIFT", x.value, spare)
        value = self.emit("ARITHMETIC_RIGHT_SHIFT", high, spare, round=True)  # what it shifts out is 0
        return QTensor(self.rescale(value, 1.0, dtype=dtype), x.dims, None)

    def truth_table(self, x: QTensor, real: np.ndarray) -> QTensor:
        """Truth values: is ``real``, for each of int8 ``x.qparams.table_inputs``, not 0? TOSA 1.0 TABLE."""
        value = self.emit("TABLE", x.value, self.const((real != 0).astype(np.int8), name="truth"))
        return QTensor(value if self.truth == "INT8" else self.emit("CAST", value, dtype="BOOL"), x.dims, None)

    def integer_table(self, x: QTensor, real: np.ndarray) -> QTensor:
        """INT32 integers: ``real`` for each of int8 ``x.qparams.table_inputs``, saturated at 30 bits. TOSA 1.0 TABLE.

        Integers of more than 8 or 15 bits are looked up in two halves.
        """
        whole = np.clip(np.trunc(_continued(real)), -(2**30), 2**30 - 1).astype(np.int64)
        if np.abs(whole).max() < 128:
            value = self.emit("TABLE", x.value, self.const(whole.astype(np.int8), name="table"))
            return QTensor(self.rescale(value, 1.0, dtype="INT32"), x.dims, None)
        unit = QParams((1.0,), (0,), *dtype_range("INT16"), "INT16")
        low = self.rescale(self.table(x, whole & 0x7FFF, unit).value, 1.0, dtype="INT32")
        high = self.rescale(self.table(x, whole >> 15, unit).value, 2.0**15, dtype="INT32")
        return QTensor(self.emit("ADD", high, low), x.dims, None)


def _in_16_bits(out: QParams) -> QParams:
    """``out``, or 1/128 of its steps if they are of 8 bits."""
    return out if out.dtype == "INT16" else QParams((out.step / 128,), (0,), *dtype_range("INT16"), "INT16")


def _codes(real: np.ndarray, q: QParams) -> np.ndarray:
    """``real`` in steps of ``q``, neither rounded nor clamped."""
    return real.astype(np.float64) / q.step + q.zp


def _continued(real: np.ndarray) -> np.ndarray:
    """NaN (outside the function's domain) replaced by the nearest number: log of a negative code is log of the least one."""
    known = np.flatnonzero(~np.isnan(real))
    if known.size in (0, real.size):
        return np.nan_to_num(real, nan=0.0, posinf=np.inf, neginf=-np.inf)
    after = np.clip(np.searchsorted(known, np.arange(real.size)), 0, known.size - 1)
    before = np.maximum(after - 1, 0)
    index = np.arange(real.size)
    return real[np.where(abs(known[after] - index) <= abs(known[before] - index), known[after], known[before])]

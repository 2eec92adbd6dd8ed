"""Lookup tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.int16_tables import FAR, Piece, pieces, sums_fit
from ethorch.lower.builder.operands import OperandBuilder
from ethorch.lower.builder.qparams import QParams, QTensor, dtype_range
from ethorch.tosa.ir import Value

F = TypeVar("F", bound=np.floating[Any])


class LookupBuilder(OperandBuilder):
    def table(self, x: QTensor, real: npt.NDArray[Any], out: QParams, *, exact: bool = False) -> QTensor:
        """Apply to ``x`` the function with values ``real`` at ``x.qparams.table_inputs``. Quantize the result with ``out``.

        An int8 TABLE has 256 entries with index = value + 128. The INT32 result of an int16 TABLE has 7 additional fractional
        bits, which a RESCALE rounds off. Finer TABLEs are added if one TABLE is too coarse, or if ``exact`` is True and
        there are discontinuities. See ``ethorch.lower.builder.int16_tables``.

        If only ``x`` is int8, each value selects an entry of an int16 TABLE, without interpolation. If only the output is int8,
        the TABLEs' results have 1/128 of the output scale, and their sum is rounded.

        Raises:
            Unsupported: TABLEs cannot approximate the function.
        """
        source, real = x.value.dtype, fill_nan(real)
        if source == out.dtype == "INT8":
            looked_up = self.emit("TABLE", x.value, self.const(out.quantize(real).astype(np.int8), name="table"))
            return self.to_qparams(QTensor(looked_up, x.dims, out), out)
        if out.dtype == "INT32":
            fine = QParams((max(float(np.abs(real).max()) / 32767, out.step),), (0,), -32767, 32767, "INT16")
            return self.to_qparams(self.table(x, real, fine, exact=exact), out)
        if source == "INT8":
            value = self.rescale(x.value, 128.0, dtype="INT16")  # value * 128 selects entry value + 256
            entries = out.quantize(np.pad(real, (128, 129), mode="edge")).astype(np.int16)
            looked_up = self.sum_of_tables(value, [Piece(-32768, 1, 1.0, entries)])
            return QTensor(self.clamp(looked_up, out.qmin, out.qmax), x.dims, out)
        fine = in_16_bits(out)
        tables = pieces(codes_of(real, fine), fine.qmin, fine.qmax, exact=True) if exact else []
        tables = tables or pieces(codes_of(real, fine), fine.qmin, fine.qmax, far=FAR if fine == out else 4 * FAR)
        if not tables:
            raise self.refuse(
                "table.oscillates",
                "the function oscillates too often in the calibrated range of its input for int16 tables",
                "Narrow the range of the input, e.g. replace x before sin or cos with x - 2 * pi * torch.round(x / (2 * pi)).",
            )
        looked_up = self.clamp(self.sum_of_tables(x.value, tables), fine.qmin, fine.qmax)
        return self.to_qparams(QTensor(looked_up, x.dims, fine), out)

    @staticmethod
    def follows_steps(real: npt.NDArray[Any], out: QParams) -> bool:
        """Return True if TABLEs can represent ``real``, including its discontinuities, for an int16 input."""
        fine = in_16_bits(out)
        return bool(pieces(codes_of(fill_nan(real), fine), fine.qmin, fine.qmax, exact=True))

    def sum_of_tables(self, value: Value, tables: Sequence[Piece]) -> Value:
        """Look up ``value`` in each TABLE, and return the saturated INT16 sum of the results."""
        total: Value | None = None
        fits = sums_fit(tables)
        for piece in tables:
            index = value
            if piece.zoom > 1:
                middle = self.const_like(value, piece.middle, name="middle")
                index = self.rescale(self.emit("SUB", self.rescale(value, 1.0, dtype="INT32"), middle), piece.zoom, dtype="INT16")
            looked_up = self.interpolate(index, piece.entries)
            if len(tables) == 1:
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

    def interpolate(self, value: Value, entries: npt.NDArray[np.int16]) -> Value:
        """Interpolate 513 entries at INT16 values and return INT32 with 7 fractional bits.

        If the target lacks EXT-INT16, 8-bit TABLEs look up each byte of an entry and of the difference to the next entry. Each
        half of the entries has separate TABLEs.
        """
        if self.accepts("TABLE", "INT16"):
            return self.emit("TABLE", value, self.const(entries, name="table"))
        const = partial(self.const_like, value)
        code = self.emit("ADD", self.rescale(value, 1.0, dtype="INT32"), const(32768))
        index = self.emit("ARITHMETIC_RIGHT_SHIFT", code, const(7), round=False)
        fraction = self.emit("SUB", code, self.emit("MUL", index, const(128), shift=0))
        is_upper = self.emit("GREATER", index, const(255))
        place = self.emit("SUB", index, self.emit("SELECT", is_upper, const(256), const(0)))
        byte = self.rescale(place, 1.0, output_zp=-128, dtype="INT8")

        def half(numbers: npt.NDArray[np.int64]) -> Value:
            high = self.emit("TABLE", byte, self.const((numbers >> 8).astype(np.int8), name="high"))
            low = self.emit("TABLE", byte, self.const(((numbers & 255) - 128).astype(np.int8), name="low"))
            wide = [self.rescale(high, 256.0, dtype="INT32"), self.rescale(low, 1.0, input_zp=-128, dtype="INT32")]
            return self.emit("ADD", *wide)

        def both(numbers: npt.NDArray[np.int64]) -> Value:
            return self.emit("SELECT", is_upper, half(numbers[256:]), half(numbers[:256]))

        numbers = entries.astype(np.int64)
        slope = self.emit("MUL", both(np.diff(numbers)), fraction, shift=0)
        return self.emit("ADD", self.emit("MUL", both(numbers[:-1]), const(128), shift=0), slope)

    def truth_table(self, x: QTensor, real: npt.NDArray[Any]) -> QTensor:
        """Look up the truth values ``real != 0`` for int8 ``x``."""
        value = self.emit("TABLE", x.value, self.const((real != 0).astype(np.int8), name="truth"))
        return QTensor(value if self.tuning.truth_dtype == "INT8" else self.emit("CAST", value, dtype="BOOL"), x.dims, None)

    def integer_table(self, x: QTensor, real: npt.NDArray[Any]) -> QTensor:
        """Look up ``real``, clamped to -2**30..2**30 - 1, as INT32 integers for int8 ``x``."""
        integers = np.clip(np.trunc(fill_nan(real)), -(2**30), 2**30 - 1).astype(np.int64)
        if np.abs(integers).max() < 128:
            value = self.emit("TABLE", x.value, self.const(integers.astype(np.int8), name="table"))
            return QTensor(self.rescale(value, 1.0, dtype="INT32"), x.dims, None)
        unit = QParams((1.0,), (0,), *dtype_range("INT16"), "INT16")
        low = self.rescale(self.table(x, integers & 0x7FFF, unit).value, 1.0, dtype="INT32")
        high = self.rescale(self.table(x, integers >> 15, unit).value, 2.0**15, dtype="INT32")
        return QTensor(self.emit("ADD", high, low), x.dims, None)


def in_16_bits(out: QParams) -> QParams:
    """Return ``out`` if it is 16-bit, or 16-bit parameters with 1/128 of its scale otherwise."""
    return out if out.dtype == "INT16" else QParams((out.step / 128,), (0,), *dtype_range("INT16"), "INT16")


def codes_of(real: npt.NDArray[Any], q: QParams) -> npt.NDArray[np.float64]:
    """Return real / scale + zero_point, neither rounded nor clamped."""
    return real.astype(np.float64) / q.step + q.zp


def fill_nan(real: npt.NDArray[F]) -> npt.NDArray[F]:
    """Replace each NaN with the nearest valid entry, or with 0 if all entries are NaN."""
    valid = np.flatnonzero(~np.isnan(real))
    if valid.size in (0, real.size):
        return np.asarray(np.nan_to_num(real, nan=0.0, posinf=np.inf, neginf=-np.inf), real.dtype)
    after = np.clip(np.searchsorted(valid, np.arange(real.size)), 0, valid.size - 1)
    before = np.maximum(after - 1, 0)
    index = np.arange(real.size)
    nearest = np.where(abs(valid[after] - index) <= abs(valid[before] - index), valid[after], valid[before])
    return np.take(real, nearest)

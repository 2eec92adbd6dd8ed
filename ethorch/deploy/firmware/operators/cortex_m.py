"""The Arm backend's ``cortex_m`` CPU operators, except layers with weights, which should run on the NPU."""

from __future__ import annotations

from collections.abc import Sequence

from ethorch.deploy.firmware.operators.dtypes import compute, computing, promote
from ethorch.deploy.firmware.operators.quantize import add_parameters, check_dtypes
from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import SUFFIX, Refused, Writer, refuse_dtype, round_to_float32


@kernel("cortex_m::quantize_per_tensor.out")
def quantize_per_tensor(w: Writer, x: View, scale: float, zero_point: int, low: int, high: int, dtype: int, out: View) -> None:
    """Compute clamp(nearest(x * (1 / scale)) + zero_point, low, high). Infinities saturate, and NaN becomes 0."""
    check_dtypes(x, out)
    if scale == 0:
        raise Refused("scale", "expected a nonzero scale, got 0", "Calibrate with inputs that are not all 0.")
    parameters = add_parameters(w, round_to_float32(1.0 / scale), zero_point, low, high)
    w.map(f"etk_cortex_m_quantize_{SUFFIX[out.dtype]}", "cortex_m.c", [out, x], parameters)


@kernel("cortex_m::dequantize_per_tensor.out")
def dequantize_per_tensor(w: Writer, x: View, scale: float, zero_point: int, low: int, high: int, dtype: int, out: View) -> None:
    """Compute (x - zero_point) * scale in float32."""
    check_dtypes(out, x)
    w.map(f"etk_cortex_m_dequantize_{SUFFIX[x.dtype]}", "cortex_m.c", [out, x], add_parameters(w, scale, zero_point, low, high))


def _shifts(*shifts: int) -> None:
    for shift in shifts:
        if not -62 <= shift <= 31:
            raise Refused("argument", f"expected a shift in -62..31, got {shift}", "Report this to the vendor of the file.")


def _int8(*views: View) -> None:
    for view in views:
        if view.dtype != "int8":
            raise refuse_dtype(view.dtype, "int8")


@kernel("cortex_m::quantized_add.out")
def quantized_add(
    w: Writer,
    x: View,
    x_zero: int,
    x_multiplier: int,
    x_shift: int,
    y: View,
    y_zero: int,
    y_multiplier: int,
    y_shift: int,
    zero: int,
    multiplier: int,
    shift: int,
    low: int,
    high: int,
    out: View,
) -> None:
    """Add int8 tensors after shifting them left by 20 bits and rescaling them to a common scale."""
    _int8(x, y, out)
    _shifts(x_shift, y_shift, shift)
    numbers = [x_zero, x_multiplier, x_shift, y_zero, y_multiplier, y_shift, zero, multiplier, shift, low, high]
    w.map("etk_cortex_m_add", "cortex_m.c", [out, x, y], w.integers(numbers))


@kernel("cortex_m::quantized_mul.out")
def quantized_mul(w: Writer, x: View, x_zero: int, y: View, y_zero: int, zero: int, multiplier: int, shift: int, out: View) -> None:
    _int8(x, y, out)
    _shifts(shift)
    w.map("etk_cortex_m_mul", "cortex_m.c", [out, x, y], w.integers([x_zero, y_zero, zero, multiplier, shift]))


@kernel("cortex_m::quantized_batch_matmul.out")
def quantized_batch_matmul(
    w: Writer, x: View, x_offset: int, y: View, y_offset: int, zero: int, multiplier: int, shift: int, scratch: View, out: View
) -> None:
    """Compute out[b, m, n] as the sum over k of x[b, m, k] * y[b, n, k].

    Operands and results are int8. ``x_offset`` and ``y_offset`` are negated zero points.
    """
    _int8(x, y, out)
    _shifts(shift)
    if x.shape[-1] > 1 and (x.strides[-1], y.strides[-1]) != (1, 1):
        text = f"expected stride 1 along the summed axis, got {x.strides[-1]} and {y.strides[-1]}"
        raise Refused("strides", text, "Report this to the vendor of the file.")
    numbers = [x.shape[-1], x_offset, y_offset, zero, multiplier, shift]
    if x.shape[-1]:
        rows, columns = x.select(-1, 0).insert_axis(2), y.select(-1, 0).insert_axis(1)
        w.map("etk_cortex_m_dot", "cortex_m.c", [out, rows, columns], w.integers(numbers), order=(0, 1, 2))
    else:
        w.fill(out, min(max(zero, -128), 127))


@kernel("cortex_m::quantized_activation.out")
def quantized_activation(w: Writer, x: View, table: View, out: View) -> None:
    """Look up table[x + 128] for each int8 value x."""
    _int8(x, table, out)
    if table.numel != 256:
        text = f"expected a table of 256 elements, got {table.numel}"
        raise Refused("shape", text, "Report this to the vendor of the file.")
    w.map("etk_cortex_m_activation", "cortex_m.c", [out, x, View(table.address, "int8", (), ())])


def _extreme(w: Writer, name: str, x: View, y: View, out: View) -> None:
    wide = computing(promote(x.dtype, y.dtype))
    compute(w, f"etk_{name}_{SUFFIX[wide]}", "elementwise.c", (wide, wide), wide, (out, x, y))


@kernel("cortex_m::minimum.out")
def minimum(w: Writer, x: View, y: View, out: View) -> None:
    _extreme(w, "minimum", x, y, out)


@kernel("cortex_m::maximum.out")
def maximum(w: Writer, x: View, y: View, out: View) -> None:
    _extreme(w, "maximum", x, y, out)


@kernel("cortex_m::transpose.out")
def transpose(w: Writer, x: View, order: Sequence[int], out: View) -> None:
    w.copy(out, x.permute(order))


def _is_channels_last(x: View) -> bool:
    """Return True if the memory order is [N, H, W, C] or ambiguous."""
    if x.rank != 4:
        return False
    single = x.shape[1] == 1 or x.shape[2:] == (1, 1)
    return single or (x.strides[1] < x.strides[2] and x.strides[1] < x.strides[3])


@kernel("cortex_m::pad.out")
def pad(w: Writer, x: View, before: Sequence[int], after: Sequence[int], value: int, out: View) -> None:
    """Pad x with one integer value. The padding sizes are for four dimensions in memory order."""
    _int8(x, out)
    order = (0, 3, 1, 2) if _is_channels_last(x) else (0, 1, 2, 3)
    inner = out
    for axis in range(x.rank):
        dim = order[axis + 4 - x.rank]
        inner = inner.slice(axis, before[dim], out.shape[axis] - after[dim])
    if inner.numel != out.numel:
        w.fill(out, value)
    w.copy(inner, x)

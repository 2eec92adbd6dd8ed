"""Quantize and dequantize, bit-equal to ExecuTorch's runtime on the host, also for NaN and infinities."""

from __future__ import annotations

from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import SUFFIX, Refused, Writer, braces, float_text, integer_text, refuse_dtype, round_to_float32

_CODES = ("int8", "uint8", "int16", "uint16", "int32")


def _check(values: View, codes: View) -> None:
    if values.dtype != "float32":
        raise refuse_dtype(values.dtype, "float32 on its float side")
    if codes.dtype not in _CODES:
        raise refuse_dtype(codes.dtype, f"{', '.join(_CODES)} on its integer side")


def _parameters(w: Writer, scale: float, zero_point: int, low: int, high: int) -> str:
    numbers = (integer_text(number) for number in (zero_point, max(low, -(2**31)), min(high, 2**31 - 1)))
    return "&" + w.constant("etk_quantization {}", braces([float_text(scale), *numbers]))


def _inverse(scale: float) -> float:
    """Return 1 / scale; scale and quotient are rounded to float32, as in the kernels."""
    narrow = round_to_float32(scale)
    if narrow == 0:
        raise Refused("scale", f"its scale {scale} is 0 in float32", "Calibrate with inputs that are not all 0.")
    return round_to_float32(1.0 / narrow)


@kernel("quantized_decomposed::quantize_per_tensor.out")
def quantize_per_tensor(w: Writer, x: View, scale: float, zero_point: int, low: int, high: int, dtype: int, out: View) -> None:
    """out = clamp(nearest(x * (1 / scale)) + zero_point, low, high), in float32, with ties to even."""
    _check(x, out)
    parameters = _parameters(w, _inverse(scale), zero_point, low, high)
    w.map(f"etk_quantize_{SUFFIX[out.dtype]}", "quantize.c", [out, x], parameters)


@kernel("quantized_decomposed::dequantize_per_tensor.out")
def dequantize_per_tensor(
    w: Writer, x: View, scale: float, zero_point: int, low: int, high: int, dtype: int, out_dtype: int | None, out: View
) -> None:
    """out = float32(x - zero_point) * float32(scale)."""
    _check(out, x)
    w.map(f"etk_dequantize_{SUFFIX[x.dtype]}", "quantize.c", [out, x], _parameters(w, scale, zero_point, low, high))


def _channels(x: View, scales: View, zero_points: View, axis: int, *, of: tuple[str, ...] = ("float64",)) -> tuple[View, View]:
    """Return scales and zero points that broadcast to x. ``of``: dtypes of scales that ExecuTorch's kernel accepts."""
    if scales.dtype not in of or zero_points.dtype != "int64":
        wrong_dtype = scales.dtype if scales.dtype not in of else zero_points.dtype
        raise refuse_dtype(wrong_dtype, f"scales of {' or '.join(of)} and zero points of int64, as ExecuTorch's kernel does")
    shape = [1] * x.rank
    shape[x.axis(axis)] = x.shape[x.axis(axis)]
    views = [view.reshape(shape) for view in (scales, zero_points)]
    if views[0] is None or views[1] is None:
        raise Refused("shape", f"its scales are {list(scales.shape)} for {shape}", "Pass one scale per channel.")
    return views[0], views[1]


@kernel("quantized_decomposed::quantize_per_channel.out")
def quantize_per_channel(
    w: Writer, x: View, scales: View, zero_points: View, axis: int, low: int, high: int, dtype: int, out: View
) -> None:
    """Quantize with a scale (float64) and a zero point (int64) per index of an axis."""
    _check(x, out)
    of_channels = _channels(x, scales, zero_points, axis)
    parameters = _parameters(w, 1.0, 0, low, high)
    w.map(f"etk_quantize_channels_{SUFFIX[out.dtype]}", "quantize.c", [out, x, *of_channels], parameters)


@kernel("quantized_decomposed::dequantize_per_channel.out")
def dequantize_per_channel(
    w: Writer,
    x: View,
    scales: View,
    zero_points: View | None,
    axis: int,
    low: int,
    high: int,
    dtype: int,
    out_dtype: int | None,
    out: View,
) -> None:
    """Dequantize with a scale (float64 or float32) and a zero point per index of an axis."""
    _check(out, x)
    if zero_points is None:
        raise Refused("argument", "it has no zero points", "Pass zeros as zero points.")
    of_channels = _channels(x, scales, zero_points, axis, of=("float64", "float32"))
    narrow = (
        (_parameters(w, 1.0, 0, low, high),) if scales.dtype == "float32" else ()
    )  # the kernel needs parameters only for float32 scales
    w.map(f"etk_dequantize_channels_{SUFFIX[x.dtype]}", "quantize.c", [out, x, *of_channels], *narrow)


@kernel("quantized_decomposed::quantize_per_tensor.Tensor_out")
def quantize_by_tensors(w: Writer, x: View, scale: View, zero_point: View, low: int, high: int, dtype: int, out: View) -> None:
    """Quantize with a computed scale (float64) and zero point (int64) of one element each."""
    _check(x, out)
    function = f"etk_quantize_channels_{SUFFIX[out.dtype]}"
    w.map(function, "quantize.c", [out, x, *_drop_axes(scale, zero_point)], _parameters(w, 1.0, 0, low, high))


@kernel("quantized_decomposed::dequantize_per_tensor.Tensor_out")
def dequantize_by_tensors(
    w: Writer, x: View, scale: View, zero_point: View, low: int, high: int, dtype: int, out_dtype: int | None, out: View
) -> None:
    """Dequantize with a computed scale (float64) and zero point (int64) of one element each."""
    _check(out, x)
    w.map(f"etk_dequantize_channels_{SUFFIX[x.dtype]}", "quantize.c", [out, x, *_drop_axes(scale, zero_point)])


def _drop_axes(scale: View, zero_point: View) -> tuple[View, View]:
    scalar_scale, zero = scale.reshape(()), zero_point.reshape(())
    if scale.dtype != "float64" or zero_point.dtype != "int64" or scalar_scale is None or zero is None:
        raise refuse_dtype(f"{scale.dtype} and {zero_point.dtype}", "a scale of float64 and a zero point of int64, of one element")
    return scalar_scale, zero

"""Quantize and dequantize operators. Results equal those of ExecuTorch's runtime on the host, including NaN and infinities."""

from __future__ import annotations

from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import SUFFIX, Refused, Writer, braces, float_text, integer_text, refuse_dtype, round_to_float32

_CODES = ("int8", "uint8", "int16", "uint16", "int32")


def check_dtypes(values: View, codes: View) -> None:
    """Raise Refused unless ``values`` is float32 and ``codes`` has a quantized dtype."""
    if values.dtype != "float32":
        raise refuse_dtype(values.dtype, "float32 values")
    if codes.dtype not in _CODES:
        raise refuse_dtype(codes.dtype, f"integer values of {', '.join(_CODES)}")


def add_parameters(w: Writer, scale: float, zero_point: int, low: int, high: int) -> str:
    """Declare an ``etk_quantization`` constant, and return a C expression for its address."""
    numbers = (integer_text(number) for number in (zero_point, max(low, -(2**31)), min(high, 2**31 - 1)))
    return "&" + w.constant("etk_quantization {}", braces([float_text(scale), *numbers]))


def _inverse(scale: float) -> float:
    narrow = round_to_float32(scale)
    if narrow == 0:
        text = f"expected a scale that is nonzero in float32, got {scale}"
        raise Refused("scale", text, "Calibrate with inputs that are not all 0.")
    return round_to_float32(1.0 / narrow)


@kernel("quantized_decomposed::quantize_per_tensor.out")
def quantize_per_tensor(w: Writer, x: View, scale: float, zero_point: int, low: int, high: int, dtype: int, out: View) -> None:
    """Compute clamp(nearest(x * (1 / scale)) + zero_point, low, high) in float32. ``nearest`` rounds ties to even."""
    check_dtypes(x, out)
    parameters = add_parameters(w, _inverse(scale), zero_point, low, high)
    w.map(f"etk_quantize_{SUFFIX[out.dtype]}", "quantize.c", [out, x], parameters)


@kernel("quantized_decomposed::dequantize_per_tensor.out")
def dequantize_per_tensor(
    w: Writer, x: View, scale: float, zero_point: int, low: int, high: int, dtype: int, out_dtype: int | None, out: View
) -> None:
    """Compute float32(x - zero_point) * float32(scale)."""
    check_dtypes(out, x)
    w.map(f"etk_dequantize_{SUFFIX[x.dtype]}", "quantize.c", [out, x], add_parameters(w, scale, zero_point, low, high))


def _channels(x: View, scales: View, zero_points: View, axis: int, *, of: tuple[str, ...] = ("float64",)) -> tuple[View, View]:
    """Return scales and zero points as views that broadcast to x."""
    # of: Scale dtypes that ExecuTorch's kernel accepts.
    if scales.dtype not in of or zero_points.dtype != "int64":
        wrong_dtype = scales.dtype if scales.dtype not in of else zero_points.dtype
        raise refuse_dtype(wrong_dtype, f"scales of {' or '.join(of)} and zero points of int64")
    shape = [1] * x.rank
    shape[x.axis(axis)] = x.shape[x.axis(axis)]
    views = [view.reshape(shape) for view in (scales, zero_points)]
    if views[0] is None or views[1] is None:
        text = f"expected {x.shape[x.axis(axis)]} scales and zero points, got {scales.numel} and {zero_points.numel}"
        raise Refused("shape", text, "Pass one scale and one zero point for each channel.")
    return views[0], views[1]


@kernel("quantized_decomposed::quantize_per_channel.out")
def quantize_per_channel(
    w: Writer, x: View, scales: View, zero_points: View, axis: int, low: int, high: int, dtype: int, out: View
) -> None:
    """Quantize with a float64 scale and an int64 zero point for each index along an axis."""
    check_dtypes(x, out)
    of_channels = _channels(x, scales, zero_points, axis)
    parameters = add_parameters(w, 1.0, 0, low, high)
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
    """Dequantize with a float64 or float32 scale and an int64 zero point for each index along an axis."""
    check_dtypes(out, x)
    if zero_points is None:
        raise Refused("argument", "expected zero points, got None", "Pass zeros as zero points.")
    of_channels = _channels(x, scales, zero_points, axis, of=("float64", "float32"))
    narrow = (
        (add_parameters(w, 1.0, 0, low, high),) if scales.dtype == "float32" else ()
    )  # the kernel requires parameters only for float32 scales
    w.map(f"etk_dequantize_channels_{SUFFIX[x.dtype]}", "quantize.c", [out, x, *of_channels], *narrow)


@kernel("quantized_decomposed::quantize_per_tensor.Tensor_out")
def quantize_by_tensors(w: Writer, x: View, scale: View, zero_point: View, low: int, high: int, dtype: int, out: View) -> None:
    """Quantize with a float64 scale and an int64 zero point, each in a one-element tensor."""
    check_dtypes(x, out)
    function = f"etk_quantize_channels_{SUFFIX[out.dtype]}"
    w.map(function, "quantize.c", [out, x, *_drop_axes(scale, zero_point)], add_parameters(w, 1.0, 0, low, high))


@kernel("quantized_decomposed::dequantize_per_tensor.Tensor_out")
def dequantize_by_tensors(
    w: Writer, x: View, scale: View, zero_point: View, low: int, high: int, dtype: int, out_dtype: int | None, out: View
) -> None:
    """Dequantize with a float64 scale and an int64 zero point, each in a one-element tensor."""
    check_dtypes(out, x)
    w.map(f"etk_dequantize_channels_{SUFFIX[x.dtype]}", "quantize.c", [out, x, *_drop_axes(scale, zero_point)])


def _drop_axes(scale: View, zero_point: View) -> tuple[View, View]:
    scalar_scale, zero = scale.reshape(()), zero_point.reshape(())
    if scale.dtype != "float64" or zero_point.dtype != "int64" or scalar_scale is None or zero is None:
        raise refuse_dtype(
            f"{scale.dtype}{list(scale.shape)} and {zero_point.dtype}{list(zero_point.shape)}",
            "a float64 scale and an int64 zero point of one element each",
        )
    return scalar_scale, zero

"""Select the computation dtypes of C code."""

from __future__ import annotations

from collections.abc import Sequence

from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import Refused, Writer, name_cast, refuse_dtype

Number = float | int | bool

_BITS = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}


def promote(first: str, second: str) -> str:
    if first == second:
        return first
    order = {first, second}
    for name in ("float64", "float32", "bfloat16", "float16"):
        if name in order:
            rest = (order - {name}).pop()
            return "float32" if {name, rest} == {"bfloat16", "float16"} else name
    if "bool" in order:
        return (order - {"bool"}).pop()
    if not order <= set(_BITS):
        raise refuse_dtype(" and ".join(sorted(order)), f"operands of {', '.join(_BITS)}")
    if "uint8" in order:
        signed_dtype = (order - {"uint8"}).pop()
        return "int16" if signed_dtype == "int8" else signed_dtype
    return max(order, key=_BITS.__getitem__)


def with_scalar(dtype: str, number: Number) -> str:
    """Return the dtype to which a tensor and a number are promoted, based on the number's Python type."""
    if isinstance(number, bool) or dtype.startswith(("float", "bfloat")):
        return dtype
    if isinstance(number, int):
        return "int64" if dtype == "bool" else dtype
    return "float32"


def computing(dtype: str) -> str:
    """Return the dtype in which C code computes with values of ``dtype``: float32, int32 or int64."""
    if dtype in ("float32", "int64", "int32"):
        return dtype
    if dtype == "uint32":
        return "int64"
    if dtype in ("bool", "uint8", "int8", "int16", "uint16"):
        return "int32"
    raise refuse_dtype(dtype, "float32, bool or an integer dtype")


def scalar(w: Writer, number: Number, dtype: str) -> View:
    """Declare a number as a constant, and return its rank-0 view."""
    return View(w.numbers([number], dtype), dtype, (), ())


def wrap(number: Number, dtype: str) -> Number:
    if dtype not in _BITS or isinstance(number, float):
        return number
    bits = _BITS[dtype]
    wrapped = number & ((1 << bits) - 1)
    return wrapped - (1 << bits) if dtype != "uint8" and wrapped >> (bits - 1) else wrapped


def compute(
    w: Writer,
    function: str,
    file: str,
    input_dtypes: tuple[str, ...],
    output_dtype: str,
    views: tuple[View, ...],
    parameters: str = "0",
    order: Sequence[int] | None = None,
) -> None:
    """Add a call to a row function with fixed dtypes. Convert operands of other dtypes.

    Args:
        views: The output, followed by the inputs.
        order: See :meth:`Writer.map`.
    """
    out, *inputs = views
    if not out.numel:
        return
    if out.dtype == output_dtype and all(view.dtype == dtype for view, dtype in zip(inputs, input_dtypes, strict=True)):
        w.map(function, file, views, parameters, order)
        return
    loads = [name_cast(dtype, view.dtype) if view.dtype != dtype else "0" for view, dtype in zip(inputs, input_dtypes, strict=True)]
    store = name_cast(out.dtype, output_dtype) if out.dtype != output_dtype else "0"
    sizes = [_SIZES[dtype] for dtype in (output_dtype, *input_dtypes)]
    loads += ["0"] * (3 - len(loads))
    sizes += [0] * (4 - len(sizes))
    w.sources |= {"cast.c", file}
    entries = [function, parameters, store, "{" + ", ".join(loads) + "}", "{" + ", ".join(map(str, sizes)) + "}"]
    name = w.constant("etk_conversion {}", "{" + ", ".join(entries) + "}")
    w.map("etk_converted", "map.c", views, f"&{name}", order, in_parts=True)


_SIZES = {"bool": 1, "int32": 4, "float32": 4, "int64": 8}


def need_float32(dtype: str) -> None:
    if dtype.startswith(("float", "bfloat")) and dtype != "float32":
        raise Refused(
            "dtype",
            f"expected a computation in float32, got {dtype}",
            "Convert the inputs to float32 in the model (x.float()).",
        )

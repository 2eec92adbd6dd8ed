"""Generate the C statements for an operator call. Values known at generation time become constants."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from ethorch.deploy.firmware.views import Axes, View, is_run, order_axes
from ethorch.support.errors import Reason

#: PyTorch dtype -> suffix of the C functions and of the C type etk_SUFFIX.
SUFFIX = {
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "float32": "f32",
    "float64": "f64",
    "bool": "b8",
}
_REPORT = "Report this call to ethorch's maintainers, because a valid model does not contain it."
SIGNED_OF_BYTES = {1: "int8_t", 2: "int16_t", 4: "int32_t", 8: "int64_t"}


class Refused(Exception):
    """The error for an operator call that cannot be expressed in C."""

    def __init__(self, id: str, text: str, remedy: str):
        super().__init__(text)
        self.reason = Reason(f"firmware.{id}", text, remedy)


def refuse_dtype(dtype: str, allowed: str) -> Refused:
    """Return a refusal with the text "expected ``allowed``, got ``dtype``"."""
    return Refused(
        "dtype",
        f"expected {allowed}, got {dtype}",
        "Convert the tensor in the model (x.to(...)) to a supported dtype.",
    )


class Writer:
    """A collector of C statements, constants and source files.

    Args:
        label: Prefix that makes the constants' names unique in the C file.
        fail: C statement to run if the operator rejects its input at run time.
    """

    def __init__(self, label: str, fail: str):
        self.label = label
        self.fail = fail
        self.lines: list[str] = []
        self.constants: list[str] = []
        self.sources: set[str] = set()

    # --- C text ---------------------------------------------------------------------------------------------------------------

    def call(self, source: str, function: str, *arguments: str) -> None:
        self.sources.add(source)
        self.lines.append(f"{function}({', '.join(arguments)});")

    def call_checked(self, source: str, function: str, *arguments: str) -> None:
        """Add a call to a function that returns nonzero if it rejects its input."""
        self.sources.add(source)
        self.lines.append(f"if ({function}({', '.join(arguments)}) != 0) {{ {self.fail} }}")

    def constant(self, declaration: str, value: str) -> str:
        """Declare a constant and return its name, which replaces the braces in ``declaration``, e.g. ``int32_t {}[2]``."""
        name = f"{self.label}_{len(self.constants)}"
        self.constants.append(f"static const {declaration.format(name)} = {value};")
        return name

    def integers(self, numbers: Sequence[int], type: str = "int32_t") -> str:
        """Declare an array of integers and return its name."""
        return self.constant(f"{type} {{}}[{max(len(numbers), 1)}]", braces([str(number) for number in numbers] or ["0"]))

    def axes(self, axes: Axes) -> tuple[str, str]:
        """Declare an array of etk_axis and return its name and length as C text. A scalar has one axis of size 1."""
        entries = axes or [(1, ())]
        text = [braces([str(size), braces([str(s) for s in steps] + ["0"] * (4 - len(steps)))]) for size, steps in entries]
        for size, steps in entries:
            if size >= 2**31 or any(abs(step) >= 2**31 for step in steps):
                most = max(size, *map(abs, steps))
                raise Refused("size", f"expected sizes and strides below 2^31, got {most}", "Use smaller tensors.")
        return self.constant(f"etk_axis {{}}[{len(entries)}]", braces(text)), f"{len(entries)}U"

    # --- loops ----------------------------------------------------------------------------------------------------------------

    def copy(self, out: View, x: View) -> None:
        """Add code that copies x to out. Both views must have the same shape and element size."""
        if out.shape != x.shape:
            raise Refused("shape", f"expected shape {list(out.shape)}, got {list(x.shape)}", _REPORT)
        if not out.numel:
            return
        axes = order_axes([out, x])
        if not axes or is_run(axes, out.item_bytes):
            run = axes.pop()[0] * out.item_bytes if axes else out.item_bytes
            if not axes:
                self.lines.append(f"memcpy({pointer(out)}, {source(x)}, {run}U);")
                return
            if run >= 8 or run not in SIGNED_OF_BYTES:
                self.call("copy.c", "etk_copy_runs", f"{run}U", *self.axes(axes), pointer(out), source(x))
                return
            axes.append((run // out.item_bytes, (out.item_bytes, out.item_bytes)))
        self._map(f"etk_copy_{out.item_bytes}", "copy.c", axes, "0", [pointer(out), source(x)])

    def cast(self, out: View, x: View) -> None:
        """Add code that copies x to out and converts it to the output's dtype."""
        if out.dtype == x.dtype:
            self.copy(out, x)
        else:
            self.map(name_cast(out.dtype, x.dtype), "cast.c", [out, x])

    def fill(self, out: View, number: float) -> None:
        """Add code that fills the output with a number, converted to the output's dtype."""
        if not out.numel:
            return
        value = self.numbers([number], out.dtype)
        self._map(f"etk_fill_{out.item_bytes}", "copy.c", order_axes([out]), value, [pointer(out)])

    def map(
        self,
        function: str,
        file: str,
        views: Sequence[View],
        parameters: str = "0",
        order: Sequence[int] | None = None,
        in_parts: bool = False,
    ) -> None:
        """Add code that calls a row function for each row of the output.

        Args:
            views: The output, followed by the inputs, which broadcast to it.
            order: Required order of the loops over axes, outermost first. Default: the output's memory order.
            in_parts: Whether the function reads several input elements before it writes their outputs. If so, a row that
                repeatedly writes one element is split into single elements.
        """
        out, *inputs = views
        if not out.numel:
            return
        if any(view.expand(out.shape) is None for view in inputs):
            shapes = " and ".join(str(list(view.shape)) for view in inputs)
            raise Refused("shape", f"expected shapes that broadcast to {list(out.shape)}, got {shapes}", _REPORT)
        wide = [view.expand(out.shape) or view for view in inputs]
        axes = order_axes([out, *wide], order)
        if order and in_parts and (out.shape[order[-1]] == 1 or out.strides[order[-1]] == 0):
            axes.append((1, ()))
        self._map(function, file, axes, parameters, [pointer(out), *map(source, wide)])

    def _map(self, function: str, file: str, axes: Axes, parameters: str, addresses: list[str]) -> None:
        self.sources.add("map.c")
        if max(len(axes), 1) > 16:
            raise Refused("rank", f"expected at most 16 dimensions, got {len(axes)}", "Merge dimensions in the model (reshape).")
        spare = addresses[-1]
        name, rank = self.axes(axes)
        self.call(file, "etk_map", function, parameters, name, rank, *addresses, *([spare] * (4 - len(addresses))))

    # --- numbers --------------------------------------------------------------------------------------------------------------

    def numbers(self, values: Sequence[float], dtype: str) -> str:
        """Declare a constant array of numbers, converted to ``dtype``, and return its name."""
        if dtype in ("float16", "bfloat16"):
            return self.constant(f"uint16_t {{}}[{len(values)}]", braces([f"{_half_bits(value, dtype)}U" for value in values]))
        if dtype not in SUFFIX:
            raise refuse_dtype(dtype, f"one of {', '.join(SUFFIX)}")
        if dtype.startswith("float"):
            entries = [float_text(value, dtype) for value in values]
        elif dtype == "bool":
            entries = ["1U" if value else "0U" for value in values]
        else:
            entries = [integer_text(_wrap(int(value), dtype), dtype) for value in values]
        return self.constant(f"etk_{SUFFIX[dtype]} {{}}[{len(values)}]", braces(entries))


def _wrap(value: int, dtype: str) -> int:
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    wrapped = value & ((1 << bits) - 1)
    return wrapped - (1 << bits) if not dtype.startswith("u") and wrapped >> (bits - 1) else wrapped


def name_cast(to: str, dtype: str) -> str:
    for name in (to, dtype):
        if name not in SUFFIX:
            raise refuse_dtype(name, f"one of {', '.join(SUFFIX)}")
    return f"etk_cast_{SUFFIX[to]}_{SUFFIX[dtype]}"


def braces(entries: Sequence[str]) -> str:
    return "{" + ", ".join(entries) + "}"


def pointer(view: View) -> str:
    """Return a writable C pointer to a view's first element."""
    start = view.offset * view.item_bytes
    return f"(uint8_t *)({view.address}) + {start}" if start else view.address


def source(view: View) -> str:
    """Return a ``const`` C pointer to a view's first element."""
    start = view.offset * view.item_bytes
    return f"(const uint8_t *)({view.address}) + {start}" if start else view.address


def integer_text(value: int, dtype: str = "int32") -> str:
    """Return a C expression for an integer. C has no literals for the minimum int32 and int64."""
    if dtype == "int64":
        return f"(-{-value - 1}LL - 1)" if value == -(2**63) else f"{value}LL"
    if dtype.startswith("u"):
        return f"{value}U" if dtype != "uint64" else f"{value}ULL"
    return "(-2147483647 - 1)" if value == -(2**31) else str(value)


def float_text(value: float, dtype: str = "float32") -> str:
    """Round a number to ``dtype``, and return an exact C expression for the result."""
    number = round_to_float32(value) if dtype == "float32" else float(value)
    end = "F" if dtype == "float32" else ""
    if math.isnan(number):
        return '__builtin_nanf("")' if end else '__builtin_nan("")'
    if math.isinf(number):
        return ("-" if number < 0 else "") + ("__builtin_inff()" if end else "__builtin_inf()")
    return number.hex() + end


def round_to_float32(value: float) -> float:
    """Round to float32, overflowing to infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _half_bits(value: float, dtype: str) -> int:
    if dtype == "float16":
        try:
            return int(struct.unpack("<H", struct.pack("<e", value))[0])
        except OverflowError:
            return 0x7C00 | (0x8000 if value < 0 else 0)
    bits = int(struct.unpack("<I", struct.pack("<f", round_to_float32(value)))[0])
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if not math.isnan(value) else 0x7FC0

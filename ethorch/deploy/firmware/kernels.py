"""Generate C calls for the CPU operators of a .pte."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ethorch.deploy.firmware.operators import KERNELS
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import Refused, Writer
from ethorch.formats.pte_types import Call, Method, Value
from ethorch.support.errors import Reason
from ethorch.support.wording import count_noun

#: Folder of the C sources.
SOURCE_FOLDER = Path(__file__).resolve().parent / "c" / "kernels"
#: Headers that every source file includes and that the generated statements require.
HEADERS = ("kernels.h", "arithmetic.h")
#: Source file -> other source files that define the functions it calls. A test compares this table with the compiler's output.
NEEDS = {
    "copy.c": ("map.c",),
    "index.c": ("map.c",),
    "pow.c": ("elementwise.c",),
    "softmax.c": ("elementwise.c", "functions.c"),
}
_REMEDY = (
    "Quantize the module that contains the operator, so that the operator runs on the NPU, or link ExecuTorch's portable kernels "
    "(docs/guides/firmware.md)."
)


@dataclass(frozen=True)
class KernelCall:
    """The C call of one operator.

    Attributes:
        lines: C statements. Empty if the operator does nothing.
        constants: Declarations at file scope, which require ``kernels.h``.
        sources: Files in ``SOURCE_FOLDER`` that define the called functions.
    """

    lines: tuple[str, ...]
    constants: tuple[str, ...]
    sources: tuple[str, ...]


def kernel_call(
    method: Method, call: Call, place: Callable[[int], str], label: str, fail: str = "return -1;"
) -> KernelCall | Reason:
    """Return the C call to an operator's kernel, or the reason why the operator cannot be called.

    Args:
        place: Function that returns the C address of a value, given its index.
        label: Prefix that makes the constants' names unique in the C file.
        fail: C statement to run if the operator rejects its input.
    """
    body = KERNELS.get(call.operator)
    if body is None:
        return Reason("firmware.operator", f"{call.operator} has no C kernel", _REMEDY)
    writer = Writer(label, fail)
    try:
        body(writer, *_arguments(method, call, body, place))
    except Refused as refusal:
        reason = refusal.reason
        return Reason(reason.id, f"{call.operator}: {reason.text}", f"{reason.remedy} {_REMEDY}")
    sources = writer.sources | {dependency for source in writer.sources for dependency in NEEDS.get(source, ())}
    return KernelCall(tuple(writer.lines), tuple(writer.constants), tuple(sorted(sources)))


def list_kernels() -> tuple[str, ...]:
    return tuple(sorted(KERNELS))


def _arguments(method: Method, call: Call, body: Callable[..., None], place: Callable[[int], str]) -> list[Any]:
    computed = _find_computed_numbers(method)

    def argument(index: int) -> Any:
        if index < 0:
            return None
        value = method.values[index]
        if value.kind == "tensor":
            if value.dynamism:
                raise Refused(
                    "dynamic_shape",
                    f"expected a tensor of static shape, got {value}",
                    "Export the model without dynamic shapes.",
                )
            return View.of(value, place(index))
        if index in computed:
            raise Refused(
                "computed_number",
                "expected a constant number as an argument, got a number computed at run time",
                "Replace the number with a constant in the model.",
            )
        return _plain(value, argument)

    values = [argument(index) for index in call.args]
    count = len(inspect.signature(body).parameters) - 1
    if len(values) < count:
        raise Refused(
            "arguments",
            f"expected {count_noun(count, 'argument')}, got {len(values)}",
            "Compile the model with this version of ethorch.",
        )
    return values[:count]


def _plain(value: Value, argument: Callable[[int], Any]) -> Any:
    if value.scalar is not None:
        return value.scalar
    if value.kind in ("tensor[]", "tensor?[]", "int[]"):
        return tuple(argument(item) for item in value.items)
    if value.kind in ("double[]", "bool[]"):
        return value.numbers
    return value.text if value.kind == "string" else None


def _find_computed_numbers(method: Method) -> frozenset[int]:
    last = (call.args[-1] for call in method.calls if call.delegate is None and call.args)
    return frozenset(index for index in last if method.values[index].kind in ("int", "bool", "double"))

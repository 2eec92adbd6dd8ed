"""C calls for the operators of a .pte that stay on the CPU: the statements, their constants, the source files they need."""

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

#: Where the C sources are.
SOURCE_FOLDER = Path(__file__).resolve().parent / "c" / "kernels"
#: What every source includes, and the statements of a call need.
HEADERS = ("kernels.h", "arithmetic.h")
#: Sources whose functions call functions of others; a test compares it with what the compiler says.
NEEDS = {
    "copy.c": ("map.c",),
    "index.c": ("map.c",),
    "pow.c": ("elementwise.c",),
    "softmax.c": ("elementwise.c", "functions.c"),
}
_WAY_OUT = "Quantize the module it is in, for the NPU to take it, or link ExecuTorch's portable kernels (docs/guides/firmware.md)."


@dataclass(frozen=True)
class KernelCall:
    """One operator's call in C.

    Attributes:
        lines: statements for the body of a function; none where nothing has to be done.
        constants: declarations at file scope, which need ``kernels.h``.
        sources: files of ``SOURCE_FOLDER`` that define what the statements call.
    """

    lines: tuple[str, ...]
    constants: tuple[str, ...]
    sources: tuple[str, ...]


def kernel_call(
    method: Method, call: Call, place: Callable[[int], str], label: str, fail: str = "return -1;"
) -> KernelCall | Reason:
    """Write one operator's call.

    Args:
        method: the method that the call is an instruction of; shapes are those of its values.
        call: of an operator, not of a delegate.
        place: C expression of the address of a value's bytes, given its index; of a constant too.
        label: a C identifier that is unique in the file; names of constants start with it.
        fail: the statement that is run where the operator refuses what it is given, as an index that is out of range.

    Returns:
        The call, or why there is none, with the operator's name.
    """
    body = KERNELS.get(call.operator)
    if body is None:
        return Reason("firmware.operator", f"{call.operator} has no kernel in C", _WAY_OUT)
    writer = Writer(label, fail)
    try:
        body(writer, *_arguments(method, call, body, place))
    except Refused as refusal:
        reason = refusal.reason
        return Reason(reason.id, f"{call.operator}: {reason.text}", f"{reason.way_out} {_WAY_OUT}")
    sources = writer.sources | {other for source in writer.sources for other in NEEDS.get(source, ())}
    return KernelCall(tuple(writer.lines), tuple(writer.constants), tuple(sorted(sources)))


def list_kernels() -> tuple[str, ...]:
    """Names of the operators that have a kernel in C."""
    return tuple(sorted(KERNELS))


def _arguments(method: Method, call: Call, body: Callable[..., None], place: Callable[[int], str]) -> list[Any]:
    """The arguments of a call as Python has them: a list of tensors that it returns comes once more behind them, and is cut off."""
    computed = _find_computed_numbers(method)

    def argument(index: int) -> Any:
        if index < 0:
            return None
        value = method.values[index]
        if value.kind == "tensor":
            if value.dynamism:
                raise Refused(
                    "dynamic_shape",
                    f"a tensor {value} of it has a size that is known only when it runs",
                    "Export the model without dynamic shapes.",
                )
            return View.of(value, place(index))
        if index in computed:
            raise Refused("computed_number", "a number that it takes is computed when it runs", "Make it a constant in the model.")
        return _plain(value, argument)

    values = [argument(index) for index in call.args]
    count = len(inspect.signature(body).parameters) - 1
    if len(values) < count:
        raise Refused(
            "arguments",
            f"it has {count_noun(len(values), 'argument')}, not {count}",
            "Compile the model with this version of ethorch.",
        )
    return values[:count]


def _plain(value: Value, argument: Callable[[int], Any]) -> Any:
    if value.kind == "bool":
        return bool(value.number)
    if value.kind in ("int", "double"):
        return value.number
    if value.kind in ("tensor[]", "tensor?[]", "int[]"):
        return tuple(argument(item) for item in value.items)
    if value.kind in ("double[]", "bool[]"):
        return value.numbers
    return value.text if value.kind == "string" else None


def _find_computed_numbers(method: Method) -> frozenset[int]:
    """Numbers that an instruction writes: the last argument of a call, where that is no tensor."""
    last = (call.args[-1] for call in method.calls if call.delegate is None and call.args)
    return frozenset(index for index in last if method.values[index].kind in ("int", "bool", "double"))

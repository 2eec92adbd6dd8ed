"""What has to be right before ExecuTorch sees it: where its own verification looks away, it aborts the process."""

from __future__ import annotations

import json
import math
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ethorch.formats.payload import BACKEND_ID, DelegatePayload, IoTensor
from ethorch.formats.pte_types import ITEM_BYTES, Method, Value
from ethorch.runtime.elements import Elements, dtype_name
from ethorch.support import trees
from ethorch.support.errors import HostError, ProgramError
from ethorch.support.wording import count_noun


def payloads(description: Method) -> tuple[DelegatePayload, ...]:
    """Every Ethos-U payload of a method, each call of it checked against it to the byte."""
    payloads = {index: delegate.payload for index, delegate in enumerate(description.delegates) if delegate.id == BACKEND_ID}
    for call in description.calls:
        if call.delegate not in payloads:
            continue
        payload = payloads[call.delegate]
        tensors = (*payload.inputs, *payload.outputs)
        where = f"delegate {call.delegate} of method {description.name!r}"
        if len(call.args) != len(tensors):
            sides = [count_noun(len(side), kind) for side, kind in _sides(payload)]
            raise ProgramError(
                f"{where} is called with {count_noun(len(call.args), 'tensor')}, but its payload has {' and '.join(sides)}. "
                "Whoever made the file lost a tensor that the delegate does not read or does not return, and on a device the wrong "
                "ones would be copied: compile the model with ethorch, or report it to the file's maker."
            )
        for number, (arg, tensor) in enumerate(zip(call.args, tensors, strict=True)):
            _check_delegate_argument(f"value {number} of {where}", description.values[arg], tensor)
    return tuple(payloads.values())


def _sides(payload: DelegatePayload) -> tuple[tuple[tuple[IoTensor, ...], str], ...]:
    return (payload.inputs, "input"), (payload.outputs, "output")


def _check_delegate_argument(what: str, value: Value, tensor: IoTensor) -> None:
    if value.kind != "tensor" or value.dtype.startswith(("float", "bfloat")):
        raise ProgramError(f"{what} is {value}; an NPU takes integer and bool tensors only.")
    item_bytes = ITEM_BYTES[value.dtype]
    if item_bytes != tensor.element_size or (math.prod(value.shape) * item_bytes != tensor.nbytes and not value.dynamism):
        raise ProgramError(
            f"{what} is {value}, but the payload expects {tensor.nbytes} bytes in elements of {tensor.element_size}."
        )


# Kinds of values that a schema's type admits. A kernel that meets another kind aborts the process.
_ADMITS = {
    "Tensor": {"tensor"},
    "int": {"int"},
    "SymInt": {"int"},
    "bool": {"bool"},
    "float": {"double", "int"},
    "number": {"int", "double", "bool"},
    "str": {"string"},
    "List[int]": {"int[]"},
    "List[SymInt]": {"int[]"},
    "List[float]": {"double[]"},
    "List[bool]": {"bool[]"},
    "List[Tensor]": {"tensor[]"},
    "List[Optional[Tensor]]": {"tensor?[]", "tensor[]"},
}


def check_kernel_calls(description: Method) -> None:
    """ProgramError when an operator gets a value of a kind its schema does not admit, or another number of them."""
    for call in description.calls:
        if call.delegate is not None or (kinds := _schema(call.operator)) is None:
            continue
        where = f"operator {call.operator} of method {description.name!r}"
        if not len(kinds) <= len(call.args) <= len(kinds) + 16:  # outputs are listed once more behind the arguments
            raise ProgramError(f"{where} is called with {count_noun(len(call.args), 'value')}; it takes {len(kinds)}.")
        for number, (arg, admitted) in enumerate(zip(call.args, kinds, strict=False)):
            value = description.values[arg]
            if admitted and value.kind not in admitted:
                raise ProgramError(f"{where}: argument {number} is {value}; it takes {' or '.join(sorted(admitted))}.")
            for item in value.items if value.kind in ("tensor[]", "tensor?[]", "int[]") else ():
                expected = "int" if value.kind == "int[]" else "tensor"
                kind = description.values[item].kind if 0 <= item < len(description.values) else "none"
                if kind != expected and not (value.kind == "tensor?[]" and (item == -1 or kind == "none")):
                    raise ProgramError(f"{where}: argument {number} lists {kind}, not {expected}.")


@lru_cache(maxsize=4096)
def _schema(operator: str) -> tuple[frozenset[str], ...] | None:
    """For each argument, the kinds it may be (empty: anything); None for an operator whose schema is unknown."""
    kinds = []
    types = _schemas().get(operator) or _schema_of_torch(operator)
    if types is None:
        return None
    for text in types.split():
        optional = text.startswith("Optional[")
        admitted = _ADMITS.get(text.removeprefix("Optional[").removesuffix("]") if optional else text, set())
        kinds.append(frozenset(admitted | ({"none"} if optional and admitted else set())))
    return tuple(kinds)


@lru_cache(maxsize=1)
def _schemas() -> dict[str, str]:
    """Operator -> the types of its arguments, of those that ExecuTorch has kernels for: ``python -m tools.kernel_schemas``."""
    found: dict[str, str] = json.loads(Path(__file__).with_name("kernel_schemas.json").read_text(encoding="utf-8"))
    return found


def _schema_of_torch(operator: str) -> str | None:
    """The same of an operator that the user registered with torch; None in a process without torch."""
    if "torch" not in sys.modules:
        return None
    import torch

    name, _, overload = operator.partition(".")
    try:
        return " ".join(str(argument.type) for argument in torch._C._get_schema(name, overload).arguments)
    except RuntimeError:
        return None


def _short(value: Any) -> str:
    return f"{type(value).__name__} {' '.join(repr(value).split()):.40}"


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "double": (int, float),
    "bool": (bool,),
    "none": (type(None),),
    "string": (str,),
}


def check_input(index: int, value: Any, spec: Value) -> Any:
    """The input as the runtime takes it: its elements in the program's order of axes. HostError for any other."""
    if spec.kind != "tensor":
        allowed = _PYTHON_TYPES.get(spec.kind, (object,))
        if not isinstance(value, allowed) or (spec.kind == "int" and isinstance(value, bool)):
            raise HostError(f"input {index} is {_short(value)}; the program takes {spec}.")
        return float(value) if isinstance(value, int) and spec.kind == "double" else value
    is_tensor = trees.is_tensor(value)
    if not is_tensor and not isinstance(value, np.ndarray):
        raise HostError(f"input {index} is {_short(value)}; the program takes a tensor, {spec}.")
    dtype = dtype_name(value)
    found = f"{dtype}{list(value.shape)}"
    if dtype != spec.dtype:
        convert = f"x.to(torch.{spec.dtype})" if is_tensor else f'x.astype("{spec.dtype}")'
        raise HostError(f"input {index} is {found}; the program takes {spec}. Convert it: {convert}.")
    fits = len(value.shape) == len(spec.shape) and all(
        size == most or (spec.dynamism and size <= most) for size, most in zip(value.shape, spec.shape, strict=True)
    )
    if not fits:
        limit = "at most " if spec.dynamism else ""
        raise HostError(f"input {index} is {found}; the program was exported for {limit}{spec}, no other shape.")
    if is_tensor and (value.device.type != "cpu" or str(value.layout) != "torch.strided"):
        raise HostError(f"input {index} is on {value.device} with layout {value.layout}; pass a dense CPU tensor.")
    return Elements.of(value, spec.dim_order)

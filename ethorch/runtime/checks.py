"""Check programs and inputs for errors that ExecuTorch does not detect, or that make it abort the process."""

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
    """Check the tensors of delegate calls, and return the method's Ethos-U payloads.

    Raises:
        ProgramError: A delegate call does not match its payload.
    """
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
                f"{where}: expected {' and '.join(sides)}, as in the payload, got {count_noun(len(call.args), 'tensor')}. The "
                "compiler removed an unused tensor from the call, so a device would copy the wrong tensors. Compile the model with "
                "ethorch, or report the error to the compiler's vendor."
            )
        for number, (arg, tensor) in enumerate(zip(call.args, tensors, strict=True)):
            _check_delegate_argument(f"value {number} of {where}", description.values[arg], tensor)
    return tuple(payloads.values())


def _sides(payload: DelegatePayload) -> tuple[tuple[tuple[IoTensor, ...], str], ...]:
    return (payload.inputs, "input"), (payload.outputs, "output")


def _check_delegate_argument(subject: str, value: Value, tensor: IoTensor) -> None:
    if value.kind != "tensor" or value.dtype.startswith(("float", "bfloat")):
        raise ProgramError(f"{subject}: expected an integer or bool tensor, got {value}.")
    item_bytes = ITEM_BYTES[value.dtype]
    if item_bytes != tensor.element_size or (math.prod(value.shape) * item_bytes != tensor.nbytes and not value.dynamism):
        raise ProgramError(
            f"{subject}: expected a tensor of {tensor.nbytes} bytes with {tensor.element_size}-byte elements, got {value}."
        )


# Value kinds that each schema type accepts. A kernel aborts the process if an argument has a different kind.
_ACCEPTED_KINDS = {
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
    """Check the arguments of each operator call against the operator's schema.

    Raises:
        ProgramError: A call does not match the schema.
    """
    for call in description.calls:
        if call.delegate is not None or (kinds := _schema(call.operator)) is None:
            continue
        where = f"operator {call.operator} of method {description.name!r}"
        if not len(kinds) <= len(call.args) <= len(kinds) + 16:  # outputs are repeated after the arguments
            raise ProgramError(f"{where}: expected {count_noun(len(kinds), 'argument')}, got {len(call.args)}.")
        for number, (arg, admitted) in enumerate(zip(call.args, kinds, strict=False)):
            value = description.values[arg]
            if admitted and value.kind not in admitted:
                raise ProgramError(f"{where}: expected {' or '.join(sorted(admitted))} as argument {number}, got {value}.")
            for element in value.items if value.kind in ("tensor[]", "tensor?[]", "int[]") else ():
                expected = "int" if value.kind == "int[]" else "tensor"
                kind = description.values[element].kind if 0 <= element < len(description.values) else "none"
                if kind != expected and not (value.kind == "tensor?[]" and (element == -1 or kind == "none")):
                    raise ProgramError(
                        f"{where}: expected a list of {expected} as argument {number}, got a list with an element of kind {kind}."
                    )


@lru_cache(maxsize=4096)
def _schema(operator: str) -> tuple[frozenset[str], ...] | None:
    """Return the accepted value kinds of each argument, or None if the schema is unknown. An empty set stands for all kinds."""
    kinds = []
    types = _schemas().get(operator) or _schema_of_torch(operator)
    if types is None:
        return None
    for text in types.split():
        optional = text.startswith("Optional[")
        admitted = _ACCEPTED_KINDS.get(text.removeprefix("Optional[").removesuffix("]") if optional else text, set())
        kinds.append(frozenset(admitted | ({"none"} if optional and admitted else set())))
    return tuple(kinds)


@lru_cache(maxsize=1)
def _schemas() -> dict[str, str]:
    """Return the argument types of all operators with an ExecuTorch kernel, as recorded by ``tools.kernel_schemas``."""
    schemas: dict[str, str] = json.loads(Path(__file__).with_name("kernel_schemas.json").read_text(encoding="utf-8"))
    return schemas


def _schema_of_torch(operator: str) -> str | None:
    if "torch" not in sys.modules:
        return None
    import torch

    name, _, overload = operator.partition(".")
    try:
        return " ".join(str(argument.type) for argument in torch._C._get_schema(name, overload).arguments)
    except RuntimeError:
        return None


def _shorten_repr(value: Any) -> str:
    if trees.is_tensor(value) or isinstance(value, np.ndarray):
        return f"{dtype_name(value)}{list(value.shape)}"
    return f"{type(value).__name__} {' '.join(repr(value).split()):.40}"


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "double": (int, float),
    "bool": (bool,),
    "none": (type(None),),
    "string": (str,),
}


def check_input(index: int, value: Any, spec: Value) -> Any:
    """Check and return an input. Tensors and arrays become ``Elements`` in the program's storage order.

    Raises:
        HostError: The type, dtype or shape does not match the program's input.
    """
    if spec.kind != "tensor":
        allowed = _PYTHON_TYPES.get(spec.kind, (object,))
        constant = spec.scalar
        is_other = constant is not None and value != constant
        if not isinstance(value, allowed) or (spec.kind == "int" and isinstance(value, bool)) or is_other:
            expected = f"the compiled constant {constant}" if constant is not None else "None"
            raise HostError(f"input {index}: expected {expected}, got {_shorten_repr(value)}. {trees.TO_VARY}")
        return float(value) if isinstance(value, int) and spec.kind == "double" else value
    is_tensor = trees.is_tensor(value)
    if not is_tensor and not isinstance(value, np.ndarray):
        raise HostError(f"input {index}: expected a tensor {spec}, got {_shorten_repr(value)}.")
    dtype = dtype_name(value)
    got = f"{dtype}{list(value.shape)}"
    if dtype != spec.dtype:
        convert = f"x.to(torch.{spec.dtype})" if is_tensor else f'x.astype("{spec.dtype}")'
        raise HostError(f"input {index}: expected {spec}, got {got}. Use {convert}.")
    fits = len(value.shape) == len(spec.shape) and all(
        size == most or (spec.dynamism and size <= most) for size, most in zip(value.shape, spec.shape, strict=True)
    )
    if not fits:
        limit = "at most " if spec.dynamism else ""
        raise HostError(f"input {index}: expected {limit}{spec}, got {got}. Use ethorch.compile(shapes=...) for other shapes.")
    if is_tensor and (value.device.type != "cpu" or str(value.layout) != "torch.strided"):
        raise HostError(f"input {index}: expected a dense CPU tensor, got {value.layout} on {value.device}.")
    return Elements.of(value, spec.dim_order)

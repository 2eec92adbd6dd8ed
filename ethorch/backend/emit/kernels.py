"""What ExecuTorch writes to a program for an operator on the CPU: the out variant of its kernel, with the same arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ethorch.backend.emit.values import CODES, Values
from ethorch.formats.pte_types import Value
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name

QUANTIZE_KERNEL = "quantized_decomposed::quantize_per_tensor.out"
DEQUANTIZE_KERNEL = "quantized_decomposed::dequantize_per_tensor.out"
COPY_KERNEL = "aten::copy_"
PUT_KERNEL = "aten::index_put_"
CAST_KERNEL = "dim_order_ops::_to_dim_order_copy.out"
CLONE_KERNEL = "dim_order_ops::_clone_dim_order.out"
VIEW_KERNEL = "aten::view_copy.out"
#: Arguments that say how a result is made: an out variant has none of them, since the tensor that it writes to says so.
_OF_RESULT = frozenset(("dtype", "layout", "device", "pin_memory"))


class Kernel(NamedTuple):
    """A kernel and its arguments but for the results.

    Attributes:
        name: as a program writes it, ``aten::add.out``.
        arguments: name -> its type in the operator's schema, in order.
    """

    name: str
    arguments: dict[str, Any]


@functools.cache
def kernel_of(op: Any) -> Kernel | None:
    """The kernel that computes an operator that changes none of its arguments; None where none is registered in PyTorch."""
    schema = op._schema
    name = op_name(op)
    if name in QUANTIZE | DEQUANTIZE:  # registered by a library of ExecuTorch's
        return Kernel(f"{schema.name}.out", {argument.name: argument.type for argument in schema.arguments})
    names = {argument.name for argument in schema.arguments}
    dropped = _OF_RESULT if names >= _OF_RESULT else frozenset()
    wanted = {argument.name: str(argument.type) for argument in schema.arguments if argument.name not in dropped}
    for overload in op._overloadpacket.overloads():
        other = getattr(op._overloadpacket, overload)._schema
        own = {argument.name: argument.type for argument in other.arguments if not argument.is_out}
        if len(own) < len(other.arguments) and {key: str(kind) for key, kind in own.items()} == wanted:
            return Kernel(f"{other.name}.{other.overload_name}", own)
    return None


def argument(values: Values, value: Any, kind: Any, number_of: Callable[[Any], int]) -> int | None:
    """Return the number of an argument in the table of values; None if the table has no form for it.

    Args:
        value: The argument as it is in a graph.
        kind: Its type in the schema.
        number_of: Returns the number of a node, and of a number that a tensor stands for.
    """
    if isinstance(kind, torch.OptionalType):
        if value is None:
            return values.none()
        kind = kind.getElementType()
    if isinstance(kind, torch.TensorType):
        return number_of(value)
    if isinstance(kind, torch.ListType) and isinstance(value, (list, tuple)):
        return _list(values, value, kind.getElementType(), number_of)
    if isinstance(value, torch.dtype):
        return values.simple(Value("int", number=CODES[str(value).removeprefix("torch.")]))
    for python, name in ((bool, "bool"), (int, "int"), (float, "double")):
        if isinstance(value, python):
            return values.simple(Value(name, number=value))
    return values.simple(Value("string", text=value)) if isinstance(value, str) else None


def _list(values: Values, items: Any, kind: Any, number_of: Callable[[Any], int]) -> int | None:
    if isinstance(kind, torch.TensorType):
        return values.simple(Value("tensor[]", items=tuple(map(number_of, items))))
    if isinstance(kind, torch.OptionalType) and isinstance(kind.getElementType(), torch.TensorType):
        return values.tensors(tuple(-1 if item is None else number_of(item) for item in items))
    if isinstance(kind, torch.IntType) and all(isinstance(item, int) for item in items):
        return values.integers(items)
    if isinstance(kind, torch.FloatType):
        return values.simple(Value("double[]", numbers=tuple(map(float, items))))
    if isinstance(kind, torch.BoolType):
        return values.simple(Value("bool[]", numbers=tuple(map(bool, items))))
    return None

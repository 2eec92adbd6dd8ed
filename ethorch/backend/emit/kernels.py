"""Kernels of CPU operators, and their arguments in the value table."""

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
#: Arguments that describe the result. Out variants do not have these arguments.
_OF_RESULT = frozenset(("dtype", "layout", "device", "pin_memory"))


class Kernel(NamedTuple):
    """A kernel and its input arguments.

    Attributes:
        name: Name in a program, e.g. ``aten::add.out``.
        arguments: Schema types of the arguments, in order, keyed by name.
    """

    name: str
    arguments: dict[str, Any]


@functools.cache
def kernel_of(op: Any) -> Kernel | None:
    """Return the out variant of a functional operator, or None."""
    schema = op._schema
    name = op_name(op)
    if name in QUANTIZE | DEQUANTIZE:  # an ExecuTorch library registers the out variants
        return Kernel(f"{schema.name}.out", {argument.name: argument.type for argument in schema.arguments})
    names = {argument.name for argument in schema.arguments}
    ignored = _OF_RESULT if names >= _OF_RESULT else frozenset()
    types = {argument.name: str(argument.type) for argument in schema.arguments if argument.name not in ignored}
    for overload in op._overloadpacket.overloads():
        variant = getattr(op._overloadpacket, overload)._schema
        inputs = {argument.name: argument.type for argument in variant.arguments if not argument.is_out}
        if len(inputs) < len(variant.arguments) and {key: str(kind) for key, kind in inputs.items()} == types:
            return Kernel(f"{variant.name}.{variant.overload_name}", inputs)
    return None


def add_argument(values: Values, value: Any, kind: Any, number_of: Callable[[Any], int]) -> int | None:
    """Add an argument to the value table. Return its index, or None if the type is not supported.

    Args:
        kind: Schema type of the argument.
        number_of: Function that returns the value index of a node or, for a scalar, of an equivalent constant tensor.
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
        return values.tensors(tuple(-1 if tensor is None else number_of(tensor) for tensor in items))
    if isinstance(kind, torch.IntType) and all(isinstance(number, int) for number in items):
        return values.integers(items)
    if isinstance(kind, torch.FloatType):
        return values.simple(Value("double[]", numbers=tuple(map(float, items))))
    if isinstance(kind, torch.BoolType):
        return values.simple(Value("bool[]", numbers=tuple(map(bool, items))))
    return None

"""A registry of C code generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Operator name in a .pte -> function that generates the C call. See ``kernel``.
KERNELS: dict[str, Callable[..., None]] = {}


def kernel(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated function as the generator for the named operators.

    The function is called with a Writer and the operator's arguments in schema order, outputs last; tensors are passed as Views. It
    raises Refused if the call cannot be expressed in C.
    """

    def enter(body: Callable[..., None]) -> Callable[..., None]:
        for name in names:
            if name in KERNELS:
                raise ValueError(f"{name} is already registered")
            KERNELS[name] = body
        return body

    return enter


def infer_dtype(number: Any) -> str:
    return "bool" if isinstance(number, bool) else "int64" if isinstance(number, int) else "float32"

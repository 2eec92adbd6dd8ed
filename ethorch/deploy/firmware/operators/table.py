"""Registry of the operators' C code generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Operator name in a .pte -> function that generates its call. See ``kernel``.
KERNELS: dict[str, Callable[..., None]] = {}


def kernel(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function under operator names.

    The function receives a Writer and the operator's arguments in schema order, outputs last. Tensors are Views; other values are
    unchanged. It raises Refused for a call that has no C code.
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

"""The table itself, apart from what fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: An operator's name in a .pte -> what writes its call. See ``kernel``.
KERNELS: dict[str, Callable[..., None]] = {}


def kernel(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enters a function in the table, under each of the names.

    The function takes a Writer, then the operator's arguments in the order of its schema, with the outputs last: a tensor as a
    View, numbers, None, strings and tuples as themselves. It raises Refused for a call that it cannot write.
    """

    def enter(body: Callable[..., None]) -> Callable[..., None]:
        for name in names:
            if name in KERNELS:
                raise ValueError(f"{name} is in the table already")
            KERNELS[name] = body
        return body

    return enter


def infer_dtype(number: Any) -> str:
    """Torch's dtype of a scalar argument: of a bool, an int or a float."""
    return "bool" if isinstance(number, bool) else "int64" if isinstance(number, int) else "float32"

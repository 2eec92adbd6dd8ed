"""``OPERATORS`` and ``FOLLOWING``: functions that add lines to a ``Draw``, with their weights."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.helpers.random_networks.draw import Draw, Unfit

Operator = Callable[[Draw], object]
#: (weight, operator)
OPERATORS: list[tuple[float, Operator]] = []
#: Group -> the same for functions that only extend a complete network. A further one leaves the networks of most seeds as they are.
FOLLOWING: dict[str, list[tuple[float, Operator]]] = {"coincidences": [], "streams": []}


def operator(weight: float) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.append((weight, function))
        return function

    return register


def following(weight: float, group: str) -> Callable[[Operator], Operator]:
    """Register a function that extends a complete network."""

    def register(function: Operator) -> Operator:
        FOLLOWING[group].append((weight, function))
        return function

    return register


def fits(d: Draw, *sizes: int, batch: int = 1) -> None:
    """Raise Unfit if a product has too many multiplications, or too many matrices, each of which is an NPU operation."""
    if math.prod(sizes) > (1 << 24) or batch > 2048:
        raise Unfit("too many multiplications")

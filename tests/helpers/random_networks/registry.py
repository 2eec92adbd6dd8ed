"""``OPERATORS``, ``FOLLOWING`` and ``STREAMS``: functions that add lines to a ``Draw``, with their weights."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.helpers.random_networks.draw import Draw, Unfit

Operator = Callable[[Draw], object]
#: (weight, operator)
OPERATORS: list[tuple[float, Operator]] = []
#: The same for functions that only extend a complete network. A further one leaves the networks of most seeds as they are.
FOLLOWING: list[tuple[float, Operator]] = []
#: The same for operators that the rarer passes over command streams change.
STREAMS: list[tuple[float, Operator]] = []


def operator(weight: float) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.append((weight, function))
        return function

    return register


def following(weight: float) -> Callable[[Operator], Operator]:
    """Register a function that extends a complete network."""

    def register(function: Operator) -> Operator:
        FOLLOWING.append((weight, function))
        return function

    return register


def for_streams(weight: float) -> Callable[[Operator], Operator]:
    """Register a function that extends a complete network by operators for passes over command streams."""

    def register(function: Operator) -> Operator:
        STREAMS.append((weight, function))
        return function

    return register


def fits(d: Draw, *sizes: int, batch: int = 1) -> None:
    """Raise Unfit if a product has too many multiplications, or too many matrices, each of which is an NPU operation."""
    if math.prod(sizes) > (1 << 24) or batch > 2048:
        raise Unfit("too many multiplications")

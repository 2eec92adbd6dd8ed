"""Operators of random networks with their weights, in the order of their names."""

from __future__ import annotations

from tests.helpers.random_networks import (
    coincidences,
    combinations,
    elementwise,
    indices,
    movement,
    products,
    registry,
    streams,
    windows,
)

__all__ = ["FOLLOWING", "OPERATORS"]
__all__ += ["coincidences", "combinations", "elementwise", "indices", "movement", "products", "streams", "windows"]

#: (weight, operator). The order is a part of what a seed stands for.
OPERATORS = sorted(registry.OPERATORS, key=lambda entry: entry[1].__name__)
FOLLOWING = {group: sorted(entries, key=lambda entry: entry[1].__name__) for group, entries in registry.FOLLOWING.items()}
